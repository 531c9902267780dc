"""Write the resolved configurations of tests/config/test_config.py and the memory of
tests/plan/test_plan.py: run it, and read the diff."""

from pathlib import Path

import yaml
from conftest import resolve
from omegaconf import OmegaConf

GOLDEN = Path(__file__).parent / "golden"
CONFIGS = {
    "default": (),
    "rec_ring": ("algo=rec_ring",),
    "paper_gsm8k": ("setting=paper/gsm8k", "gpus=8x80gb"),
}

if __name__ == "__main__":
    from planned import LAYOUTS, gigabytes, planned

    for name, overrides in CONFIGS.items():
        OmegaConf.save(OmegaConf.create(resolve(*overrides)), GOLDEN / f"{name}.yaml")
    memory = {name: gigabytes(planned(name)) for name in LAYOUTS}
    text = yaml.dump(memory, sort_keys=False, default_flow_style=None, width=100)
    (GOLDEN / "plan.yaml").write_text(text)
