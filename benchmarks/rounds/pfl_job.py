"""The job in pfl-research (Apple, 0.6.0): FederatedAveraging on its SimulatedBackend, in one
process.

pip install --no-deps pfl==0.6.0 multiprocess dill     (its own pins would install other
                                                       accountants)
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.rounds import jobs
from benchmarks.rounds.gate import Gate
from fedlsg.simulations import workloads


def run(model_name: str, rounds: int, *, private: bool = False) -> None:
    """All rounds, with a gate before each but the first; ``private``: each client clips its update
    and adds noise.

    Raises ImportError if pfl is not installed.
    """
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset
    from pfl.data.dataset import Dataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy import GaussianMechanism

    gate = Gate.from_environment()

    class Wait(TrainingProcessCallback):  # type: ignore[misc, unused-ignore]
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
            gate.wait(central_iteration + 2)
            return False, Metrics()

    workload = workloads.load("job")
    inputs, labels = workload.train.batch(torch.arange(jobs.CLIENTS * jobs.IMAGES))

    def user(identity: int) -> object:
        rows = slice(jobs.IMAGES * identity, jobs.IMAGES * (identity + 1))
        return Dataset(raw_data=[inputs[rows], labels[rows]])

    net = with_loss(jobs.MODELS[model_name]())
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**6,
            train_cohort_size=jobs.COHORT,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=FederatedDataset(
                user, get_user_sampler("random", list(range(jobs.CLIENTS)))
            ),
            val_data=None,
            postprocessors=[GaussianMechanism(1.0, 2.0)] if private else None,
        ),
        model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_batch_size=jobs.BATCH, local_num_epochs=1, local_learning_rate=0.01
        ),
        callbacks=[Wait()],
        send_metrics_to_platform=False,
    )


def with_loss(model: nn.Module) -> nn.Module:
    """The model with the two methods that pfl needs."""

    def loss(inputs: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        return F.cross_entropy(model(inputs), labels)

    model.loss, model.metrics = loss, lambda inputs, labels, eval=False: {}  # type: ignore[assignment]
    np.random.seed(0)
    return model
