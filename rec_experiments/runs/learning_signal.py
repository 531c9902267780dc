"""Whether rewards give a gradient, what to try where they do not, and a rate to begin with."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from rec_experiments.config.experiment import Experiment
from rec_experiments.config.plugins import CONF
from rec_experiments.policy.models import Adapted, FineTuned, Pretrained
from rec_experiments.runs.display import shortened
from rec_experiments.training.policies import Teacher

# Parameters of language models, and the settings that hold a rate at which such a model learned.
RATES = {135e6: "lm/gsm8k", 500e6: "paper/gsm8k_05b", 1.5e9: "paper/gsm8k"}
RATE = "optimizer.learning_rate"
TOO_HIGH = 2.0  # times the rate to begin with
TRIED = 3  # batches without a gradient, after which a run warns
ENOUGH = 0.125  # of the groups; with fewer that give a gradient, most of a batch is wasted
LONGEST_SHOWN = 300  # characters of a question or a response

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Signal:
    """What some responses give to learn from. right, cut: the share of responses that were judged
    right, and that were cut at the length limit. varied: the share of groups that give a gradient,
    because their rewards differ."""

    right: float
    cut: float
    varied: float

    @classmethod
    def of_rows(cls, rows: Sequence[Row]) -> "Signal":
        """Of the batches of these rows of metrics.jsonl."""

        def mean(key: str) -> float:
            return sum(row[f"train/{key}"] for row in rows) / len(rows)

        return cls(right=mean("accuracy"), cut=mean("truncated"), varied=mean("live_groups"))


def what_to_try(signal: Signal, experiment: Experiment) -> str:
    """Why hardly anything can be learned from such responses, and what to try; "" if enough can."""
    if signal.varied >= ENOUGH and signal.cut < 1:
        return ""
    dataset = experiment.dataset
    prompted = hasattr(dataset, "system_prompt")
    if signal.cut > 0.5:
        asking = ", or ask for short answers with dataset.system_prompt" if prompted else ""
        many = "every response was" if signal.cut == 1 else "most responses were"
        return (
            f"{many} cut at dataset.max_response_tokens={dataset.max_response_tokens} before the "
            f"end: raise it{asking}"
        )
    if signal.right < 0.5:
        few = "few responses were" if signal.right else "no response was"
        return (
            f"{few} judged right: {_better_start(experiment)}; choose easier problems; "
            + ("say in dataset.system_prompt how to write an answer; " if prompted else "")
            + "and see whether the verdict on the response shown is fair"
        )
    return (
        "nearly all responses to a problem have the same reward: choose harder problems, or raise "
        "group_size or sampler.temperature"
    )


def _better_start(experiment: Experiment) -> str:
    if isinstance(experiment.model, FineTuned):
        return f"raise model.warm_start.steps={experiment.model.warm_start.steps}"
    if isinstance(experiment.model, Pretrained):
        return "begin with a short supervised phase, model=fine_tuned"
    return "begin with a language model, model=fine_tuned model.path=FOLDER"


def rate_to_begin_with(parameters: float) -> tuple[float, str]:
    """A learning rate for a language model of this size, and the setting that it is from: that of
    the nearest size, as a factor."""
    nearest = min(RATES, key=lambda size: abs(math.log(size / parameters)))
    setting = OmegaConf.load(CONF / "setting" / f"{RATES[nearest]}.yaml")
    return float(setting.optimizer.learning_rate), RATES[nearest]


def too_high(experiment: Experiment, parameters: float) -> str:
    """A remark on a learning rate far above that of language models of this size, or ""."""
    own: float | None = getattr(experiment.optimizer, "learning_rate", None)
    is_language_model = isinstance(experiment.model, Pretrained)
    if own is None or not is_language_model or isinstance(experiment.model, Adapted):
        return ""
    rate, setting = rate_to_begin_with(parameters)
    if own <= TOO_HIGH * rate:
        return ""
    return (
        f"{RATE}={own:g}: is high for a model of {parameters / 1e6:.3g} million parameters; "
        f"setting={setting} begins with {rate:g}"
    )


def watch_first_batches(
    experiment: Experiment, example: Callable[[], Row | None], note: Callable[[str], None]
) -> Callable[[Row], None]:
    """A function that sees each row of metrics.jsonl and warns if the first batches of the run give
    nothing to learn from. example: a row of samples.jsonl to show then."""
    rows: list[Row] = []
    last = min(TRIED * experiment.updates.per_batch, experiment.steps)

    def see(row: Row) -> None:
        if 1 <= row["step"] <= last:
            rows.append(row)
        if row["step"] != last or len(rows) < last:  # not yet, or begun by an earlier process
            return
        signal = Signal.of_rows(rows)
        if (signal.varied or isinstance(experiment.reference, Teacher)) and signal.cut < 1:
            return
        found = "no gradient" if not signal.varied else "only responses that were cut"
        note(f"warning     {found} in the first batches: {what_to_try(signal, experiment)}")
        if shown := example():
            note(f"  prompt    {in_one_line(shown['prompt'])}")
            note(f"  response  {in_one_line(shown['response'])}")
            note(f"  answer    {shown['answer']}, reward {shown['reward']:g}")

    return see


def in_one_line(text: str) -> str:
    """A text in one line: if it is long, its beginning and its end."""
    return shortened(re.sub(r"\s*\n\s*", " ⏎ ", text.strip()), LONGEST_SHOWN)
