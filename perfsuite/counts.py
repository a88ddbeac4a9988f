"""What is counted rather than timed, and so is the same on every run: name, label and unit of each figure."""

from perfsuite.units import Unit

COUNTED: tuple[tuple[str, str, Unit], ...] = (
    ("kernels", "kernels per step", Unit.COUNT),
    ("syncs", "host syncs per step", Unit.COUNT),
    ("h2d_bytes", "bytes to the device per step", Unit.BYTES),
    ("d2h_bytes", "bytes to the host per step", Unit.BYTES),
    ("blocking_copies", "blocking copies per step", Unit.COUNT),
    ("flops", "FLOPs per step", Unit.COUNT),
    ("parameter_memory", "memory of parameters", Unit.BYTES),
    ("gradient_memory", "memory of gradients", Unit.BYTES),
    ("optimizer_memory", "memory of the optimizer", Unit.BYTES),
    ("activation_memory", "memory of activations", Unit.BYTES),
)
