"""Ray's tasks that each run /bin/true in a resident worker. Usage: python ray_tasks.py COUNT; its last line is tasks a second."""

import json
import os
import subprocess
import sys
import time

import ray  # type: ignore[import-not-found, unused-ignore]


def main(count: int) -> None:
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")

    @ray.remote(num_cpus=1)  # type: ignore[untyped-decorator, unused-ignore]
    def true() -> int:
        return subprocess.call(["/bin/true"])

    ray.get([true.remote() for _ in range(4 * (os.cpu_count() or 1))])  # its workers are there
    start_s = time.monotonic()
    ray.get([true.remote() for _ in range(count)])
    print(json.dumps(count / (time.monotonic() - start_s)))
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
