"""What a user may say about any run, in one frozen record, before the workload fills the gaps.

Settings of methods, mechanism, server and codecs are declared where they are used; ``simulations.settings.settings``
puts all of them together. Nothing here imports torch: what is wrong with these is said before anything is started.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, Literal

from fedlsg.setting import Setting

Bits = Literal["float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user said; None means "the workload's own", or "none".

    Each field declares its sentence, unit and range, and the ``fallback`` where the workload says nothing, either.
    """

    # what is trained
    workload: Annotated[
        str, Setting("Data and its models; fedlsg list workloads lists all.", aliases=("data", "task"))
    ] = "digits"
    method: Annotated[
        str, Setting("Recipe, or auto; fedlsg list methods lists all.", aliases=("recipe", "algorithm"))
    ] = "auto"
    uplink_budget: Annotated[
        int | None, Setting("Bytes of a client's update, at most, for method=auto.", "bytes", at_least=1)
    ] = None
    preset: Annotated[str | None, Setting("A paper's row, see fedlsg list presets; options override it.")] = None
    from_preset: Annotated[str | None, Setting("The preset that a run was made from; fedlsg writes it.")] = None
    model: Annotated[str | None, Setting("Model that is trained; the workload's own by default.")] = None
    pretrained: Annotated[
        str | None,
        Setting("Public weights to start from: a file, a folder, or a name on the hub."),
    ] = None
    pretrained_sha256: Annotated[
        str | None, Setting("Digest of the pretrained file, which fedlsg writes; no other file fits.")
    ] = None
    train_layers: Annotated[
        int | None, Setting("Last layers of an encoder that are trained.", "layers", at_least=0)
    ] = None
    features: Annotated[str | None, Setting("Public features of a small head: scattering, a folder or a model.")] = None
    feature_norm: Annotated[
        str | None, Setting("How features are normalised: parts such as group, pool, leaves, with +.")
    ] = None
    head_width: Annotated[
        int | None, Setting("Hidden units or channels of a head on features.", "units", at_least=1)
    ] = None
    seed: Annotated[int, Setting("Public seed: initial weights, partition, carriers, masks.", at_least=0)] = 0
    data_dir: Annotated[str | None, Setting("Local mirror of the data; default FEDLSG_DATA, then the hub.")] = None
    data_root: Annotated[
        str | None, Setting("Where relative paths of your data begin; default the working folder.")
    ] = None
    dataset: Annotated[str | None, Setting("Name of your own data set, for hf-image and hf-text.")] = None
    subset: Annotated[str | None, Setting("Subset of your own data set.")] = None
    input_columns: Annotated[str | None, Setting("Columns of the inputs, with commas.", aliases=("columns",))] = None
    label_column: Annotated[str | None, Setting("Column of the label.", aliases=("label",))] = None
    test_split: Annotated[str | None, Setting("Split that accuracy is measured on.")] = None
    max_length: Annotated[int | None, Setting("Longest text; more is cut off.", "tokens", at_least=1)] = None
    train_rows: Annotated[int | None, Setting("Train on so many rows only.", "rows", at_least=1)] = None
    holdout: Annotated[
        float | None,
        Setting("Share of the training rows to test on, in place of the test split.", "share", above=0, below=1),
    ] = None
    public_rows: Annotated[
        str | None, Setting("Public rows to train on instead: data:NAME, data:PATH or synthetic.")
    ] = None
    normalise: Annotated[
        Literal["none", "public"], Setting("public: inputs by mean and deviation of the public test rows.")
    ] = "none"
    augment: Annotated[
        Literal["none", "flip-crop"] | None, Setting("How images are changed at random.", fallback="none")
    ] = None
    multiplicity: Annotated[
        int | None, Setting("Augmented copies of each example, averaged.", "copies", at_least=1, fallback=1)
    ] = None
    # what protects it
    epsilon: Annotated[
        float | None,
        Setting(
            "Privacy budget of each client; calibrates the noise.", above=0, below=inf, fallback=8.0, aliases=("eps",)
        ),
    ] = None
    noise_multiplier: Annotated[
        float | None,
        Setting("Noise over clip norm, instead of a target.", above=0, below=inf, aliases=("sigma", "noise")),
    ] = None
    delta: Annotated[float | None, Setting("delta of (epsilon, delta).", above=0, below=1, fallback=1e-5)] = None
    unit: Annotated[
        Literal["example", "client"],
        Setting("What epsilon protects: one example, or a client with all of its data.", aliases=("level",)),
    ] = "example"
    trust: Annotated[
        Literal["client", "secure", "aggregate", "server"],
        Setting("Clients add all noise, or a share in a real or assumed sum; or the server."),
    ] = "client"
    clip_quantile: Annotated[
        float | None,
        Setting("Quantile of clients' norms that the clip norm follows.", "share", above=0, below=1),
    ] = None
    clip_learning_rate: Annotated[
        float | None, Setting("Learning rate of log C under clip_quantile.", above=0, below=inf)
    ] = None
    clip_count_noise: Annotated[
        float | None,
        Setting(
            "Noise in the count of clip_quantile; default a 20th of a round's, or z.", "clients", above=0, below=inf
        ),
    ] = None
    min_survivors: Annotated[
        int | None,
        Setting("Clients that a round needs; less the colluders, they make a sum's noise.", "clients", at_least=1),
    ] = None
    colluders: Annotated[
        int | None,
        Setting("Clients of a secure sum that may read it together; 1 or more.", "clients", at_least=0),
    ] = None
    reproducible: Annotated[bool, Setting("Seed the noise too: NOT PRIVATE.")] = False
    # the federation
    rounds: Annotated[
        int | None,
        Setting("Server rounds, or auto.", "rounds", at_least=1, fallback=10, aliases=("num_rounds",)),
    ] = None
    epochs: Annotated[
        float | None,
        Setting("Expected passes over the data, for rounds=auto; 20 if not given.", "passes", above=0, below=inf),
    ] = None
    auto: Annotated[str | None, Setting("Settings that fedlsg chose, see fedlsg docs choosing; it writes this.")] = None
    clients: Annotated[
        int | None,
        Setting(
            "Clients that the data is partitioned over.",
            "clients",
            at_least=1,
            fallback=5,
            aliases=("num_clients", "nodes"),
        ),
    ] = None
    clients_per_round: Annotated[
        int | None, Setting("Clients selected in each round; default all.", "clients", at_least=1, aliases=("cohort",))
    ] = None
    local_steps: Annotated[
        int | None,
        Setting(
            "Private steps a client takes each round.",
            "steps",
            at_least=1,
            fallback=1,
            aliases=("steps", "k", "local_epochs"),
        ),
    ] = None
    local_learning_rate: Annotated[
        float | None,
        Setting("Learning rate of local steps; default the server's.", above=0, below=inf, aliases=("local_lr",)),
    ] = None
    local_momentum: Annotated[float | None, Setting("Momentum of local steps.", at_least=0, below=1, fallback=0.0)] = (
        None
    )
    proximal: Annotated[
        float | None,
        Setting(
            "mu of FedProx, which pulls local steps to the round's weights.",
            at_least=0,
            below=inf,
            aliases=("mu", "proximal_mu", "fedprox"),
        ),
    ] = None
    personal: Annotated[
        str | None,
        Setting(
            "Parameters that stay with a client: classifier, or the start of names.",
            aliases=("personalization", "head", "fedper", "fedrep"),
        ),
    ] = None
    personal_learning_rate: Annotated[
        float | None, Setting("Learning rate of personal parameters; default the local one.", above=0, below=inf)
    ] = None
    sampling: Annotated[
        Literal["poisson", "shuffle"],
        Setting("poisson, or shuffle: every example once an epoch, no amplification."),
    ] = "poisson"
    sample_rate: Annotated[
        float | None,
        Setting(
            "Poisson rate q: the chance of an example to be in a step.",
            above=0,
            at_most=1,
            fallback=0.1,
            aliases=("q",),
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        Setting(
            "Batch of each client (expected, if poisson), instead of sample_rate.",
            "examples",
            at_least=1,
            aliases=("batch", "bs"),
        ),
    ] = None
    microbatch_size: Annotated[
        int | None,
        Setting(
            "Examples whose gradients are held at a time.",
            "examples",
            at_least=1,
            fallback=256,
            aliases=("microbatch",),
        ),
    ] = None
    partition: Annotated[
        str | None,
        Setting("iid, dirichlet, shards, or a column of the data: a client for each value.", fallback="iid"),
    ] = None
    weighting: Annotated[
        Literal["examples", "clients"] | None,
        Setting("Clients count by their examples or equally; default by their expected batch.", aliases=("weights",)),
    ] = None
    alpha: Annotated[
        float | None, Setting("Concentration of partition=dirichlet.", above=0, below=inf, fallback=0.5)
    ] = None
    shards_per_client: Annotated[
        int | None, Setting("Shards of partition=shards.", "shards", at_least=1, fallback=2)
    ] = None
    # a federation whose clients are away, leave or are slow, in simulated time
    availability: Annotated[
        str | None,
        Setting(
            "Chance of a client to be there in a round, or a CSV trace: client,from,to.",
            "share, or a file",
        ),
    ] = None
    dropout: Annotated[
        float | None,
        Setting("Share of the selected clients that leave before they train.", "share", at_least=0, below=1),
    ] = None
    speed: Annotated[
        str | None,
        Setting("Spread of clients' computing times: constant, or lognormal S."),
    ] = None
    example_seconds: Annotated[
        float | None,
        Setting(
            "Simulated time of an example's gradient at factor 1; 0.01 if not given.",
            "simulated seconds",
            above=0,
            below=inf,
        ),
    ] = None
    uplink_mbps: Annotated[
        float | None, Setting("Rate of each client's uplink; default: sending takes no time.", "Mbit/s", above=0)
    ] = None
    downlink_mbps: Annotated[
        float | None, Setting("Rate of each client's downlink; default: sending takes no time.", "Mbit/s", above=0)
    ] = None
    deadline: Annotated[
        float | None,
        Setting(
            "Time after the start of a round; later replies are not used.", "simulated seconds", above=0, below=inf
        ),
    ] = None
    over_selection: Annotated[
        float | None,
        Setting(
            "Clients on top of clients_per_round; the first replies are used.",
            "share",
            at_least=0,
            at_most=10,
        ),
    ] = None
    # what is sent and written
    codec: Annotated[
        str, Setting("How values are sent; fedlsg settings codec lists all.", aliases=("compression", "quantization"))
    ] = "float32"
    indices: Annotated[Literal["derived", "explicit"], Setting("Positions follow from public data, or are sent.")] = (
        "derived"
    )
    downlink: Annotated[
        Literal["full", "sparse"], Setting("Send weights (full), or the updates that a client missed (sparse).")
    ] = "full"
    downlink_codec: Annotated[str | None, Setting("How values are sent with downlink=sparse.")] = None
    record_updates: Annotated[bool, Setting("Keep every payload in updates/.")] = False
    evaluate_every: Annotated[int, Setting("Rounds between two evaluations.", "rounds", at_least=1)] = 1
    evaluate_clients: Annotated[
        bool, Setting("At the end, accuracy on public test rows of each client's class mix.")
    ] = False
    callbacks: Annotated[
        str | None,
        Setting(
            "Called after each round: early-stopping, best-model, mlflow, wandb, own.",
            aliases=("logger", "early_stopping", "wandb", "mlflow"),
        ),
    ] = None
    # where it runs
    engine: Annotated[
        Literal["ray", "local", "flower"],
        Setting("ray: Ray workers; local: this process; flower: written by flwr run."),
    ] = "ray"
    device: Annotated[
        Device,
        Setting("Where models are computed; auto: CUDA in each process that finds it.", aliases=("gpu",)),
    ] = "auto"
    precision: Annotated[Bits, Setting("Precision of the forward and backward pass.")] = "float32"
    activation_storage: Annotated[Bits, Setting("Precision in which activations are stored.")] = "float32"
    threads: Annotated[int, Setting("Threads of torch in every process.", "threads", at_least=1)] = 1
    client_cpus: Annotated[int, Setting("Processors of a Ray worker.", "processors", at_least=1, aliases=("cpus",))] = 1
    client_gpus: Annotated[float, Setting("GPU of a Ray worker.", "GPUs", at_least=0, below=inf, aliases=("gpus",))] = (
        0.25
    )
    workers: Annotated[
        int | None, Setting("Ray workers of a run, at most; default as many as fit.", "workers", at_least=1)
    ] = None
    data_from: Annotated[
        Literal["node", "driver"] | None,
        Setting("Where Ray workers have the data from: their node, or sent by the driver."),
    ] = None
    round_timeout: Annotated[
        float, Setting("Longest wait for a round.", "seconds", above=0, below=inf, aliases=("timeout",))
    ] = 3600.0
    client_timeout: Annotated[
        float | None,
        Setting(
            "Longest wait for a client; default 10 times what others take, 60 at least.",
            "seconds", above=0, below=inf,
        ),
    ] = None  # fmt: skip
    run_dir: Annotated[str | None, Setting("Run directory; fedlsg run takes it as --out.", aliases=("out",))] = None
    parameters: dict[str, Any] = field(default_factory=dict, hash=False)
    """Settings of method, mechanism, server and codec, by name: ``simulations.settings.settings`` lists them."""


@dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """What a run uses: the gaps are filled. None is left where there is nothing to say.

    ``epsilon`` is None without a target, ``noise_multiplier`` where clients have different ones or none; of
    ``sample_rate`` and ``batch_size`` one is None; what says more about data or model may be None as before.
    """

    model: str
    augment: Literal["none", "flip-crop"]
    multiplicity: int
    delta: float
    min_survivors: int
    rounds: int
    clients: int
    clients_per_round: int
    local_steps: int
    local_momentum: float
    microbatch_size: int
    partition: str
    alpha: float
    shards_per_client: int
