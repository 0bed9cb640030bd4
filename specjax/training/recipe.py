"""Every setting of a training run besides the model's size and the text."""

from __future__ import annotations

from dataclasses import asdict, dataclass

OPTIMIZERS = ("muon", "adamw")


@dataclass(frozen=True)
class Recipe:
    """Everything that shapes a run besides the model's size and the text; equal recipes give equal models.

    Attributes:
        steps: optimizer steps.
        batch_size, length: B sequences of T tokens per step.
        seed: of the initial parameters and of the order of the text.
        optimizer: "muon" (hidden matrices by Muon, everything else by AdamW) or "adamw" (everything).
        learning_rate: peak of the schedule, reached after `warmup_steps` and held until the
            last `decay_fraction` of the steps, over which it falls to zero.
        betas, weight_decay, clip_norm: of AdamW; only matrices decay; the gradient's global norm is clipped.
        mtp_weight: weight of the MTP block's mean loss beside the trunk's loss.
        mtp_steps: draft steps that training unrolls, each fed with the block's own hidden rows.
        mtp_sequences: sequences of every batch on which the block trains.
        head_only: the trunk stands still, and the block learns the trunk's own distribution instead of the text (a
            second run, after one of the whole model): what counts for drafts is what the trunk will say.
        eval_every, save_every: steps between held-out evaluations and between checkpoints.
        eval_batches: batches of held-out text, evenly spread, that an evaluation reads.
    """

    steps: int
    batch_size: int = 4
    length: int = 512
    seed: int = 0
    optimizer: str = "muon"
    learning_rate: float = 3e-3
    warmup_steps: int = 60
    decay_fraction: float = 0.4
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    mtp_weight: float = 0.2
    mtp_steps: int = 3
    mtp_sequences: int = 1
    head_only: bool = False
    eval_every: int = 100
    eval_batches: int = 8
    save_every: int = 25

    def __post_init__(self) -> None:
        def require(condition: bool, message: str) -> None:
            if not condition:
                raise ValueError(f"Recipe: {message}")

        for name in ("steps", "batch_size", "length", "eval_every", "eval_batches", "save_every"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; it must be positive")
        require(self.optimizer in OPTIMIZERS, f"optimizer is {self.optimizer!r}; known are {OPTIMIZERS}")
        require(self.mtp_weight >= 0, f"mtp_weight is {self.mtp_weight}; it must not be negative")
        require(
            0 < self.mtp_sequences <= self.batch_size,
            f"mtp_sequences is {self.mtp_sequences}; it must be from 1 to batch_size ({self.batch_size})",
        )
        require(
            0 < self.mtp_steps < self.length - 1,
            f"mtp_steps is {self.mtp_steps}; it must be from 1 to length - 2 ({self.length - 2})",
        )

    @property
    def tokens_per_step(self) -> int:
        """B * T, the tokens that one optimizer step reads."""
        return self.batch_size * self.length

    def to_dict(self) -> dict[str, object]:
        """The fields as plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict) -> Recipe:
        """The inverse of `to_dict`, also after a trip through JSON."""
        return cls(**{**fields, "betas": tuple(fields["betas"])})
