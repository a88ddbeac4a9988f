"""Start Python on several ranks with torchrun's engine: python -m perfsuite.devices.ranks.launch N DIR ARGS…

torchrun's command line would do the same, but reports only in prose how each rank ended.
"""

import json
import os
import signal
import sys
import threading
import time
import uuid
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def main(arguments: list[str]) -> int:
    """Run Python on the ranks; return 0, or 1 with the failures written to the folder."""
    ranks, folder, *rest = arguments
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(ranks),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(Path(folder, "logs")), redirects=Std.ALL),
        local_addr="localhost",
    )
    try:
        elastic_launch(config, sys.executable)(*rest)
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda entry: entry[1].timestamp)
        report = [
            {"rank": rank, "status": failure.exitcode, "signal": _signal(failure.exitcode)}
            for rank, failure in failures
        ]
        Path(folder, "failures.json").write_text(json.dumps(report), encoding="utf-8")
        return 1
    return 0


def _die_with(parent: int) -> None:
    """Kill this process and all its ranks when the run that started it is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # only ours: the run started this process in a new group


def _signal(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
