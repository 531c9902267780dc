"""Whether the Hugging Face hub answers. Libraries retry a silent hub for half a minute per file, so
a process asks only once.
"""

import functools
import os
import sys

from rec_experiments.errors import first_line

PATIENCE = 5.0  # seconds to connect, and to get the first byte


@functools.cache
def silence() -> str:
    """Why the hub cannot be asked, or "" if it answers.

    If it does not answer, this process and its children use only what was fetched before.
    """
    from huggingface_hub import constants, get_session, is_offline_mode

    if is_offline_mode():
        return "HF_HUB_OFFLINE is set, and it has not been fetched before"
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception as error:  # of the hub's HTTP library, whichever that is
        os.environ["HF_HUB_OFFLINE"] = "1"
        constants.HF_HUB_OFFLINE = True
        if datasets := sys.modules.get("datasets"):  # has already read the variable
            datasets.config.HF_HUB_OFFLINE = True
        return (
            f"{constants.ENDPOINT} has not answered within {PATIENCE:g} s ({first_line(error)}), "
            "and it has not been fetched before"
        )
    return ""
