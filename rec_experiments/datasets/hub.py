"""Whether the Hugging Face hub answers. It is asked once: libraries ask a silent one again and
again, for half a minute, and for each file anew.
"""

import functools
import os
import sys

from rec_experiments.errors import first_line

PATIENCE = 5.0  # seconds for a connection, and for the first word


@functools.cache
def silence() -> str:
    """Why the hub cannot be asked, or "" if it answers.

    If it cannot, this process and those that it starts take from then on what has been fetched
    before, and ask no more.
    """
    from huggingface_hub import constants, get_session, is_offline_mode

    if is_offline_mode():
        return "HF_HUB_OFFLINE is set, and it has not been fetched before"
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception as error:  # of whatever library the hub's own uses
        os.environ["HF_HUB_OFFLINE"] = "1"
        constants.HF_HUB_OFFLINE = True
        if datasets := sys.modules.get("datasets"):  # it has read it already
            datasets.config.HF_HUB_OFFLINE = True
        return (
            f"{constants.ENDPOINT} has not answered within {PATIENCE:g} s ({first_line(error)}), "
            "and it has not been fetched before"
        )
    return ""
