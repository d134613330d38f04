"""The bare script that a start is compared with: imports torch, starts and stops Ray with two such workers."""

import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
import torch


@ray.remote(num_cpus=1)
class Worker:
    """Imports torch."""

    def ready(self) -> str:
        """The version that was imported."""
        import torch

        return torch.__version__


def main() -> None:
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
    workers = [Worker.remote() for _ in range(2)]
    versions = ray.get([worker.ready.remote() for worker in workers])
    assert versions == [torch.__version__] * 2
    ray.shutdown()


if __name__ == "__main__":
    main()
