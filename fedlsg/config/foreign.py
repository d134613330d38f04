"""Names of settings in other libraries, which error messages explain; no such name is accepted.

The names are from private training (Opacus, TensorFlow Privacy, fastDP, JAX Privacy), federated
learning (Flower, TensorFlow Federated, pfl, FedML) and training (torch, the Trainer of
transformers, Lightning). This is the only such table: each place that refuses an unknown name asks
``in_our_words`` for the end of its message.
"""

from collections.abc import Callable, Collection
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_our_words(name: str, known: Collection[str]) -> str:
    """The end of a message about an unknown name: fedlsg's name for it, or why it is not needed.

    Empty for a name that is in no table. ``known``: the names that this place accepts.
    """
    word = _normalized(name)
    if word in NOT_NEEDED:
        return f"; leave it out: {NOT_NEEDED[word]}"
    here = our_names(name, known)
    if here:
        setting, meaning = OTHER_MEANING.get(word, ("", ""))
        means = f", {meaning}" if setting in here else ""
        return f"; it is {' or '.join(map(repr, here))} here{means}"
    ours = OUR_NAMES.get(word, "").split()
    if not ours:
        return ""
    return f"; fedlsg calls it {' or '.join(ours)}, {WHERE_GIVEN.get(ours[0], IN_SIMULATE)}"


def our_names(name: str, known: Collection[str]) -> list[str]:
    """The accepted names for a name of another library; the name itself if it is accepted."""
    word = _normalized(name)
    if word in known:
        return [word]
    return [ours for ours in OUR_NAMES.get(word, "").split() if ours in known]


def _normalized(name: str) -> str:
    """A name or option as the tables write it: "--Max-Grad-Norm" is max_grad_norm."""
    return name.strip("-").replace("-", "_").lower()


def explain_other_names(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with a TypeError for an unknown keyword that says what fedlsg calls it."""
    known = signature(function).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in known.values()):
        raise TypeError(f"{function.__name__} takes any keyword: ask in_our_words inside")

    @wraps(function)
    def explained(*args: P.args, **given: P.kwargs) -> T:
        for name in given:
            hint = "" if name in known else in_our_words(name, known)
            if hint:
                raise TypeError(f"{function.__name__}() has no argument {name!r}{hint}")
        return function(*args, **given)

    return explained


OUR_NAMES = {
    "accelerator": "device",
    "accept_failures": "min_survivors",
    "accumulation_steps": "microbatch_size",
    "adam_beta1": "optimizer_options",
    "adam_beta2": "optimizer_options",
    "adam_epsilon": "optimizer_options",
    "adaptive_clip_learning_rate": "clip_learning_rate",
    "aggregator": "method",
    "algorithm": "method",
    "attention_dropout": "encoder_dropout",
    "batch": "batch_size sample_rate",
    "batch_size": "sample_rate",
    "beta_1": "optimizer_options",
    "beta_2": "optimizer_options",
    "betas": "optimizer_options",
    "bf16": "precision",
    "bs": "batch_size sample_rate",
    "central_num_iterations": "rounds",
    "checkpoint_dir": "out",
    "client_epochs": "local_steps",
    "client_epochs_per_round": "local_steps",
    "client_learning_rate": "local_learning_rate",
    "client_lr": "local_learning_rate",
    "client_momentum": "local_momentum",
    "client_num_in_total": "clients",
    "client_num_per_round": "clients_per_round",
    "clients_per_epoch": "clients_per_round",
    "clip_bound": "clip_norm",
    "clip_grad_norm": "clip_norm",
    "clip_threshold": "clip_norm",
    "clip_value": "clip_norm",
    "clipbound_learning_rate": "clip_learning_rate",
    "clipping": "clip",
    "clipping_bound": "clip_norm",
    "clipping_fn": "clip",
    "clipping_mode": "clip",
    "clipping_norm": "clip_norm",
    "clipping_threshold": "clip_norm",
    "cohort": "clients_per_round",
    "cohort_size": "clients_per_round",
    "columns": "input_columns",
    "comm_round": "rounds",
    "compression": "codec",
    "compute_metrics": "metrics",
    "cpus": "client_cpus",
    "criterion": "loss",
    "data": "train workload",
    "data_norm": "clip_norm",
    "dataloader_num_workers": "workers loader_workers",
    "dataset_name": "workload",
    "dataset_size": "num_examples",
    "dirichlet_alpha": "alpha",
    "dp_delta": "delta",
    "dp_epsilon": "epsilon",
    "dtype": "precision",
    "early_stopping": "callbacks",
    "eps": "epsilon",
    "eta": "learning_rate",
    "eta_l": "local_learning_rate",
    "eval_dataset": "test",
    "evaluation_frequency": "evaluate_every",
    "expected_batch_size": "batch_size sample_rate",
    "federated_optimizer": "method",
    "fedper": "personal",
    "fedprox": "proximal",
    "fedrep": "personal",
    "final_lr": "final_learning_rate",
    "fp16": "precision",
    "fraction_fit": "clients_per_round",
    "fraction_train": "clients_per_round",
    "gpu": "device",
    "gpus": "client_gpus",
    "grad_norm": "clip_norm",
    "gradient_accumulation_steps": "microbatch_size",
    "gradient_clip_val": "clip_norm",
    "head": "personal classifier",
    "hidden_dropout": "encoder_dropout",
    "initial_l2_norm_clip": "clip_norm",
    "iterations": "steps rounds",
    "k": "local_steps",
    "l2_clip": "clip_norm",
    "l2_clip_norm": "clip_norm",
    "l2_norm_bound": "clip_norm",
    "l2_norm_clip": "clip_norm",
    "label": "targets label_column",
    "labels": "targets label_column",
    "level": "unit",
    "local_epochs": "local_steps",
    "local_lr": "local_learning_rate",
    "local_num_epochs": "local_steps",
    "log_dir": "out",
    "logger": "callbacks",
    "lora_r": "rank",
    "lora_rank": "rank",
    "loss_fn": "loss",
    "lr": "learning_rate",
    "lr_scheduler": "schedule",
    "lr_scheduler_type": "schedule",
    "max_epochs": "epochs",
    "max_grad_norm": "clip_norm",
    "max_norm": "clip_norm",
    "max_per_sample_grad_norm": "clip_norm",
    "max_physical_batch_size": "microbatch_size",
    "max_steps": "steps rounds",
    "microbatch": "microbatch_size",
    "min_available_clients": "clients",
    "min_available_nodes": "clients",
    "min_fit_clients": "clients_per_round min_survivors",
    "min_train_nodes": "clients_per_round min_survivors",
    "mini_batch_size": "batch_size sample_rate",
    "minibatch_size": "batch_size sample_rate",
    "mixed_precision": "precision",
    "mlflow": "callbacks",
    "module": "model",
    "mu": "proximal",
    "n_clients": "clients",
    "n_epochs": "epochs",
    "n_jobs": "workers",
    "n_rounds": "rounds steps",
    "nesterov": "optimizer_options",
    "net": "model",
    "nodes": "clients",
    "noise": "noise_multiplier",
    "noise_factor": "noise_multiplier",
    "noise_scale": "noise_multiplier",
    "noise_std": "noise_multiplier",
    "num_clients": "clients",
    "num_clients_per_round": "clients_per_round",
    "num_cpus": "client_cpus",
    "num_epochs": "epochs",
    "num_gpus": "client_gpus",
    "num_iterations": "steps rounds",
    "num_local_epochs": "local_steps",
    "num_microbatches": "microbatch_size",
    "num_nodes": "clients",
    "num_partitions": "clients",
    "num_rounds": "rounds steps",
    "num_sampled_clients": "clients_per_round",
    "num_samples": "num_examples",
    "num_server_rounds": "rounds",
    "num_steps": "steps rounds",
    "num_supernodes": "clients",
    "num_train_epochs": "epochs",
    "num_train_examples": "num_examples",
    "num_workers": "workers loader_workers",
    "number_of_examples": "num_examples",
    "optim": "optimizer",
    "out": "run_dir",
    "output_dir": "out",
    "partition_alpha": "alpha",
    "partition_method": "partition",
    "partitioner": "partition",
    "per_device_train_batch_size": "batch_size sample_rate",
    "per_sample_clip_norm": "clip_norm",
    "personalization": "personal",
    "physical_batch_size": "microbatch_size",
    "privacy_budget": "epsilon",
    "proximal_mu": "proximal",
    "q": "sample_rate",
    "quantization": "codec",
    "r": "rank",
    "random_seed": "seed",
    "random_state": "seed",
    "recipe": "method",
    "resume_from_checkpoint": "resume",
    "rounds": "steps",
    "rounds_per_eval": "evaluate_every",
    "sample_size": "num_examples",
    "sampling_probability": "sample_rate",
    "sampling_rate": "sample_rate",
    "save_dir": "out",
    "scheduler": "schedule",
    "sensitivity": "clip_norm",
    "server_learning_rate": "learning_rate",
    "server_lr": "learning_rate",
    "server_momentum": "momentum",
    "sigma": "noise_multiplier",
    "steps": "rounds local_steps",
    "strategy": "method",
    "target_delta": "delta",
    "target_eps": "epsilon",
    "target_epsilon": "epsilon",
    "target_unclipped_quantile": "clip_quantile",
    "task": "workload",
    "tau": "optimizer_options",
    "test_data": "test",
    "test_dataset": "test",
    "test_set": "test",
    "testset": "test",
    "timeout": "round_timeout",
    "total_rounds": "rounds steps",
    "train_batch_size": "batch_size sample_rate",
    "train_data": "train",
    "train_dataset": "train",
    "train_set": "train",
    "trainset": "train",
    "val_dataset": "test",
    "validation_data": "test",
    "wandb": "callbacks",
    "wd": "weight_decay",
    "weighted_by_key": "weighting",
    "weights": "weighting",
}
"""Fedlsg's name for a setting or argument of another library. Places of fedlsg that differ have
several names, with spaces between them: each place accepts some of them.
"""

MEANS_SHARE = "the share of the rows that is in a mean batch"
MEANS_RATIO = "the deviation of the noise over clip_norm"
MEANS_COUNT = "a number of clients, not a share"
MEANS_ROWS = "the rows of one pass"
MEANS_BATCHES = "batches, not passes over the data"
OTHER_MEANING = {
    **dict.fromkeys(("noise_scale", "noise_std", "sigma"), ("noise_multiplier", MEANS_RATIO)),
    **dict.fromkeys(("fraction_fit", "fraction_train"), ("clients_per_round", MEANS_COUNT)),
    **dict.fromkeys(
        ("accumulation_steps", "gradient_accumulation_steps", "num_microbatches"),
        ("microbatch_size", MEANS_ROWS),
    ),
    **dict.fromkeys(
        ("client_epochs", "client_epochs_per_round", "local_epochs", "local_num_epochs"),
        ("local_steps", MEANS_BATCHES),
    ),
    **dict.fromkeys(
        (
            name
            for name, ours in OUR_NAMES.items()
            if "sample_rate" in ours.split() and "batch" in name
        ),
        ("sample_rate", MEANS_SHARE),
    ),
}
"""Names whose numbers mean something else here: our setting, and what its number means."""
WHERE_GIVEN = {
    "num_examples": "an argument of PrivateStep; a run counts the rows of train",
    "out": "an argument of simulate, and the option --out",
    "resume": "an argument of simulate, and the command fedlsg resume",
    "steps": "an argument of PrivateStep and of fedlsg calibrate",
    **dict.fromkeys(
        (
            "delta",
            "epochs",
            "epsilon",
            "learning_rate",
            "loss",
            "microbatch_size",
            "model",
            "noise_multiplier",
            "optimizer",
            "precision",
            "sample_rate",
            "seed",
        ),
        "an argument of PrivateStep and simulate",
    ),
}
"""Where a setting of ours is given, if not to ``simulate`` alone."""
IN_SIMULATE = "an argument of simulate"
EVALUATES = (
    "the server evaluates the model, on the workload's public test rows, with the workload's "
    "metrics="
)
NOTHING_ELSE = "clients send what is private, and no metrics of training"
PACKED = "payloads are packed by fedlsg, and settings travel with them"
SECRET = "noise is drawn from a cryptographic generator"
OF_MODEL = (
    "the initial weights are those of the model: load a checkpoint in the function that builds it"
)
ARGUMENTS = "settings of training are arguments: learning_rate=, local_steps=, ..."
NOT_NEEDED = {
    "accountant": "epsilon is a certified upper bound, by fedlsg's own accountant",
    "alphas": "epsilon is a certified upper bound, by fedlsg's own accountant",
    "arrayrecord_key": PACKED,
    "configrecord_key": PACKED,
    "data_loader": "batches are Poisson samples of the data, made by step.batches(data)",
    "drop_last": "batches are Poisson samples",
    "evaluate_config": EVALUATES,
    "evaluate_fn": f"{EVALUATES}; a Flower Strategy has start(evaluate_fn=...), too",
    "evaluate_metrics_aggr_fn": EVALUATES,
    "evaluate_metrics_aggregation_fn": EVALUATES,
    "fit_metrics_aggregation_fn": NOTHING_ELSE,
    "fraction_evaluate": EVALUATES,
    "grad_sample_mode": "how gradients of examples are computed follows from the model",
    "initial_arrays": OF_MODEL,
    "initial_parameters": OF_MODEL,
    "inplace": PACKED,
    "loss_reduction": "a loss is given as it is, and its reduction is read",
    "min_evaluate_clients": EVALUATES,
    "min_evaluate_nodes": EVALUATES,
    "noise_generator": SECRET,
    "on_evaluate_config_fn": EVALUATES,
    "on_fit_config_fn": ARGUMENTS,
    "poisson_sampling": "batches are Poisson samples",
    "secure_mode": SECRET,
    "secure_rng": SECRET,
    "train_config": f"{ARGUMENTS}, and no key is read by clients",
    "train_metrics_aggr_fn": NOTHING_ELSE,
    "validate": "the model is checked before the first step",
}
"""Settings of other libraries that fedlsg does not need, with the reason."""
