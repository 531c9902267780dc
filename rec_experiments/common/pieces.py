"""Pieces: classes that the configuration names, with fields whose types and ranges are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, dataclass_transform

from pydantic import ConfigDict, Field, GetCoreSchemaHandler
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic_core import core_schema

# sampler: log-probabilities as the sampler reported them. behavior: the policy that drew the
# tokens. proximal: the center of the trust region. reference: the policy of a KL penalty.
ROLES = frozenset({"sampler", "behavior", "proximal", "reference"})
# Exact values at each token in nats: the policy's entropy, and KL(π_θ ‖ π_reference).
DENSE = frozenset({"entropy", "kl"})
TARGET = "_target_"  # the key of a configuration that names a class
CHECKED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What a piece of an algorithm reads, beyond its own rows of a mini-batch.

    logps: roles of policies whose log-probabilities it reads, from ROLES. `behavior` is always
    available. If a piece needs `sampler`, `behavior` is recomputed by the trainer's forward pass,
    so that the two differ only in rounding.
    whole_batch: it must see all rows of the mini-batch at once, however that is split into
    micro-batches and ranks.
    dense: quantities over the whole vocabulary that it differentiates, from DENSE.
    lengths: an advantage that reads the number of tokens of each response.

    Raises ValueError for an unknown name.
    """

    logps: frozenset[str] = frozenset()
    whole_batch: bool = False
    dense: frozenset[str] = frozenset()
    lengths: bool = False

    def __post_init__(self) -> None:
        for field_name, allowed in (("logps", ROLES), ("dense", DENSE)):
            for name in getattr(self, field_name) - allowed:
                raise ValueError(
                    f"needs.{field_name}={name}: must be of {', '.join(sorted(allowed))}"
                )

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            logps=self.logps | other.logps,
            whole_batch=self.whole_batch or other.whole_batch,
            dense=self.dense | other.dense,
            lengths=self.lengths or other.lengths,
        )


@dataclass_transform(kw_only_default=True)
class Settings:
    """A group of values of the configuration. A subclass declares its fields like a dataclass, and
    pydantic turns it into one, with keyword arguments.

    Raises ValueError (pydantic's ValidationError) for an unknown or missing field, a value of
    another type, one out of range, as in `low: Annotated[float, Field(ge=0)]`, and a number that is
    not finite. A field of such a class also takes a mapping of its values.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        checked_dataclass(cls, kw_only=True, config=CHECKED)

    @classmethod
    def field_names(cls) -> list[str]:
        """The names of the fields."""
        # Subclasses are dataclasses, which a type checker cannot see here.
        return [each.name for each in fields(cls)]  # type: ignore[arg-type]

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Let a mapping stand for an object, which strict types would not."""
        return {**handler(source), "strict": False}


class Piece(Settings):
    """Base of every class that a config group can choose. The configuration names the class by its
    dotted path, under the key `_target_`.

    needs: what a piece of an algorithm reads beyond its own rows.
    formula: what it computes, as `str.format` fills it with the names that `describe` is given and
    the values of the fields; None for the first line of the docstring.
    imported: the fields that hold the dotted name of something to import.
    """

    needs: ClassVar[Needs] = Needs()
    formula: ClassVar[str | None] = None
    imported: ClassVar[tuple[str, ...]] = ()

    def describe(self, *names: Any, **_: Any) -> str:
        """One line. names: those of the ratio or advantage that it is applied to."""
        if self.formula is not None:
            return self.formula.format(*names, **vars(self))
        first = (type(self).__doc__ or type(self).__name__).splitlines()[0].rstrip(".")
        values = ", ".join(f"{name}={getattr(self, name)}" for name in self.field_names())
        return f"{first} ({values})" if values else first


def class_name(choice: Mapping[str, Any]) -> str:
    """The name of the class of a choice in a resolved configuration, without its module."""
    return str(choice[TARGET]).rpartition(".")[2]
