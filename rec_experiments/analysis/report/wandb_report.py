"""The figures as a W&B Report: a panel grid per figure, with a run set per arm.

Runs have the names of their folders in their configuration and the schedule as their group
(`tracking=wandb` sets both).
So each line of a panel is one arm under one schedule, over seeds. Only saving needs the network.
"""

from typing import Any, TypeAlias

from rec_experiments import sweeps
from rec_experiments.common.errors import UserError
from rec_experiments.runs.trackers import FOLDER
from rec_experiments.sweeps.figures import Figure

COLUMNS, PANEL_HEIGHT = 24, 8  # units of W&B's grid
PANELS_A_ROW = 2
Section: TypeAlias = tuple[Figure, dict[str, list[str]]]  # names of run folders by arm


def sections(names: list[str], overrides: list[str]) -> list[Section]:
    """The sections of some sweeps. Raises UserError for a wrong override."""
    found = []
    for name in names:
        figure = sweeps.load_figure(name, overrides)
        arms: dict[str, list[str]] = {}
        for job in sweeps.jobs(figure, overrides):
            arms.setdefault(job.label, []).append(job.path.name)
        found.append((figure, arms))
    return found


def build(entity: str, project: str, figures: list[Section]) -> Any:
    """A wandb_workspaces.reports.v2.Report, not yet saved."""
    import wandb_workspaces.reports.v2 as wr  # slow

    def run_set(label: str, names: list[str]) -> Any:
        # Without entity and project, it reads the report's project and sends no request.
        return wr.Runset(name=label, filters=f'Config("{FOLDER}") in {names!r}', groupby=["group"])

    def panel(place: int, panel: sweeps.Panel) -> Any:
        width = COLUMNS // PANELS_A_ROW
        row, column = divmod(place, PANELS_A_ROW)
        return wr.LinePlot(
            title=panel.label,
            x="Step",
            y=[panel.metric],
            log_y=panel.log,
            title_x="gradient steps",
            title_y=panel.label,
            groupby_aggfunc="mean",
            groupby_rangefunc="minmax",
            layout=wr.Layout(x=column * width, y=row * PANEL_HEIGHT, w=width, h=PANEL_HEIGHT),
        )

    blocks: list[Any] = [
        wr.P(
            "Lines: mean over the seeds of one arm under one schedule, not smoothed. "
            "Areas: from the lowest seed to the highest."
        ),
        wr.TableOfContents(),
    ]
    for figure, arms in figures:
        blocks += [
            wr.H2(figure.title),
            wr.P(figure.caption),
            wr.PanelGrid(
                runsets=[run_set(label, names) for label, names in arms.items()],
                panels=[panel(place, each) for place, each in enumerate(figure.panels)],
            ),
        ]
    return wr.Report(
        entity=entity,
        project=project,
        title="Off-policy REINFORCE: figures",
        description="Runs of rec_experiments, arXiv 2509.24203.",
        blocks=blocks,
        width="fluid",
    )


def save(report: Any) -> str:
    """Create the report in W&B and return its address. Raises UserError if W&B refuses it."""
    import wandb

    target = f"wandb={report.entity}/{report.project}"
    if not wandb.login(prompt=False):
        raise UserError(f"{target}: needs a W&B key; set WANDB_API_KEY or run `wandb login`")
    try:
        return report.save().url
    except (wandb.Error, ValueError, OSError) as error:
        raise UserError(f"{target}: W&B refused the report ({error})") from error
