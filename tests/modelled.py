"""Count and predict on a modelled device as the perf fixture does, without pytest."""

from perfsuite.devices.protocol import Plan


def model_step(step, device, samples_per_step):
    return device.measurer(Plan()).step(step, samples_per_step=samples_per_step, name="step")


def model_loop(loader, step, device, *, samples, batch_seconds):
    measurer = device.measurer(Plan())
    return measurer.loop(loader, step, samples=samples, name="loop", batch_seconds=batch_seconds)


def model_pair(without, with_, device, *, samples_per_step):
    measurer = device.measurer(Plan())
    return measurer.pair(without, with_, samples_per_step=samples_per_step, name="comparison")
