"""Write the resolved configurations that test_config.py compares with, and the memory that
plan/test_plan.py does: run it, read the diff."""

from conftest import resolve
from omegaconf import OmegaConf
from planned import gigabytes, planned
from test_config import ALGORITHM_GROUPS, GOLDEN, LAYOUTS, PRESETS, of_run

from rec_experiments.config import schema

schema.register()
OmegaConf.save(OmegaConf.create(resolve()), GOLDEN / "default.yaml")
for preset in PRESETS:
    config = resolve(f"algo={preset}")
    OmegaConf.save({group: config[group] for group in ALGORITHM_GROUPS}, GOLDEN / f"{preset}.yaml")
for name, overrides in LAYOUTS.items():
    OmegaConf.save(OmegaConf.create(of_run(resolve(*overrides))), GOLDEN / "paper" / f"{name}.yaml")
OmegaConf.save({name: gigabytes(planned(name)) for name in LAYOUTS}, GOLDEN / "plan.yaml")
