"""What other libraries call the settings of fedlsg, for messages: nothing accepts these names.

From private training (Opacus, TensorFlow Privacy, fastDP, JAX Privacy), federated learning (Flower,
pfl, FedML) and training (torch, the Trainer of transformers, Lightning).
"""

from collections.abc import Collection

OURS = {
    "accumulation_steps": "microbatch_size",
    "adam_beta1": "optimizer_options",
    "adam_beta2": "optimizer_options",
    "adam_epsilon": "optimizer_options",
    "batch_size": "sample_rate",
    "bf16": "precision",
    "central_num_iterations": "rounds",
    "client_lr": "local_learning_rate",
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
    "cohort_size": "clients_per_round",
    "comm_round": "rounds",
    "compute_metrics": "metrics",
    "criterion": "loss",
    "dataset_size": "num_examples",
    "dp_delta": "delta",
    "dp_epsilon": "epsilon",
    "eval_dataset": "test",
    "evaluate_fn": "test metrics",
    "expected_batch_size": "batch_size sample_rate",
    "fp16": "precision",
    "fraction_evaluate": "evaluate_clients",
    "fraction_fit": "clients_per_round",
    "fraction_train": "clients_per_round",
    "grad_norm": "clip_norm",
    "gradient_accumulation_steps": "microbatch_size",
    "gradient_clip_val": "clip_norm",
    "initial_parameters": "pretrained",
    "l2_clip": "clip_norm",
    "l2_clip_norm": "clip_norm",
    "l2_norm_bound": "clip_norm",
    "l2_norm_clip": "clip_norm",
    "loss_fn": "loss",
    "lr_scheduler": "schedule",
    "lr_scheduler_type": "schedule",
    "max_epochs": "epochs",
    "max_grad_norm": "clip_norm",
    "max_norm": "clip_norm",
    "max_physical_batch_size": "microbatch_size",
    "max_steps": "steps rounds",
    "min_available_clients": "clients",
    "min_available_nodes": "clients",
    "min_evaluate_clients": "evaluate_clients",
    "min_fit_clients": "clients_per_round",
    "min_train_nodes": "clients_per_round",
    "mini_batch_size": "batch_size sample_rate",
    "mixed_precision": "precision",
    "module": "model",
    "n_epochs": "epochs",
    "noise_scale": "noise_multiplier",
    "noise_std": "noise_multiplier",
    "num_clients_per_round": "clients_per_round",
    "num_cpus": "client_cpus",
    "num_epochs": "epochs",
    "num_gpus": "client_gpus",
    "num_iterations": "steps rounds",
    "num_microbatches": "microbatch_size",
    "num_partitions": "clients",
    "num_sampled_clients": "clients_per_round",
    "num_samples": "num_examples",
    "num_server_rounds": "rounds",
    "num_steps": "steps rounds",
    "num_supernodes": "clients",
    "num_train_epochs": "epochs",
    "optim": "optimizer",
    "output_dir": "out",
    "per_device_train_batch_size": "batch_size sample_rate",
    "physical_batch_size": "microbatch_size",
    "rounds": "steps",
    "sample_size": "num_examples",
    "sampling_probability": "sample_rate",
    "sampling_rate": "sample_rate",
    "server_learning_rate": "learning_rate",
    "server_lr": "learning_rate",
    "strategy": "method",
    "target_delta": "delta",
    "target_eps": "epsilon",
    "target_epsilon": "epsilon",
    "target_unclipped_quantile": "clip_quantile",
    "train_batch_size": "batch_size sample_rate",
    "train_dataset": "train",
}
"""Settings and arguments of fedlsg by another library's name; with a space where doors differ."""
NEEDLESS = {
    "accountant": "epsilon is a certified upper bound, by fedlsg's own accountant",
    "data_loader": "batches are Poisson samples of the data, made by step.batches(data)",
    "grad_sample_mode": "how gradients of examples are computed follows from the model",
    "loss_reduction": "a loss is given as it is, and its reduction is read",
    "noise_generator": "noise is drawn from a cryptographic generator",
    "poisson_sampling": "batches are Poisson samples",
    "secure_mode": "noise is drawn from a cryptographic generator",
    "secure_rng": "noise is drawn from a cryptographic generator",
    "validate": "the model is checked before the first step",
}
"""Settings of other libraries that nothing here needs, with the reason."""


def in_our_words(name: str, known: Collection[str]) -> str:
    """The end of a message about the name of another library; empty for one that is in no table.

    ``known``: what may be given at this door.
    """
    word = name.replace("-", "_").lower()
    if word in NEEDLESS:
        return f"; leave it out: {NEEDLESS[word]}"
    ours = OURS.get(word, "").split()
    here = [one for one in ours if one in known]
    if here:
        return f"; it is {here[0]!r} here"
    if not ours:
        return ""
    return f"; fedlsg calls it {' or '.join(ours)}, an argument of PrivateStep or simulate"
