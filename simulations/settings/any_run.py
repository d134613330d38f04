"""What a user may say about any run, in one frozen record, before the workload fills the gaps.

Each setting declares its sentence, unit and range, what it needs and does not go with
(``fedlsg.config.rules``). Settings of methods, mechanism, server and codecs are declared where
they are used; ``fedlsg.simulations.settings.settings`` puts all of them together. Nothing here
imports torch: what is wrong with these is said before anything is started.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, Literal

from fedlsg.config import Setting
from fedlsg.config.partitions import ANY
from fedlsg.config.rules import idle_unless, needs
from fedlsg.simulations.settings.federation import ON_TEST_PARTS, Federation, SimulatedTime
from fedlsg.simulations.settings.privacy import Privacy

Bits = Literal["float32", "bfloat16"]
Device = Literal["auto", "cpu", "cuda"]

DOWN_GRID = "downlink_codec and down_grid_from_noise"
OF_RAY = idle_unless(
    "engine!=local", "it is about Ray workers, and engine=local has none: leave it out"
)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Data and model"""

    workload: Annotated[
        str,
        Setting("Data and its models; fedlsg list workloads lists all."),
    ] = "digits"
    method: Annotated[
        str,
        Setting("Recipe, or auto; fedlsg list methods lists all."),
    ] = "auto"
    uplink_budget: Annotated[
        int | None,
        Setting(
            "Bytes of a client's update, at most, for method=auto.",
            "bytes",
            at_least=1,
            rules=(
                needs(
                    "chosen_method",
                    "it chooses one, and one is given ({method!r}): leave one of them out",
                ),
            ),
        ),
    ] = None
    preset: Annotated[
        str | None, Setting("A paper's row, see fedlsg list presets; options override it.")
    ] = None
    from_preset: Annotated[
        str | None, Setting("The preset that a run was made from; fedlsg writes it.")
    ] = None
    model: Annotated[
        str | None,
        Setting(
            "Model that is trained, one of the workload's: plan with a wrong name lists them; its "
            "first by default."
        ),
    ] = None
    pretrained: Annotated[
        str | None,
        Setting("Public weights to start from: a file, a folder, or a name on the hub."),
    ] = None
    pretrained_sha256: Annotated[
        str | None,
        Setting("Digest of the pretrained file, which fedlsg writes; no other file fits."),
    ] = None
    start_from: Annotated[
        str | None,
        Setting(
            "Run whose weights this one starts from, and whose ledgers go on in its own.",
            rules=(
                needs(
                    "not fresh_data",
                    "it counts the ledgers of that run, as its data are the same: for other data "
                    "give the run as pretrained, with fresh_data",
                ),
                needs("not public_rows", "public rows need no ledger: take pretrained"),
                needs(
                    "not deployed",
                    "the clients' own ledgers count all of their runs: take pretrained",
                ),
                needs(
                    "engine!=flower",
                    "its clients keep ledgers of their own: take fedlsg run",
                ),
            ),
        ),
    ] = None
    fresh_data: Annotated[
        bool,
        Setting(
            "Your word that the data are others than those behind the weights to start from.",
            rules=(
                needs(
                    "not deployed", "no client can know what it says: leave it out", of="fresh_data"
                ),
            ),
        ),
    ] = False
    train_layers: Annotated[
        int | None, Setting("Last layers of an encoder that are trained.", "layers", at_least=0)
    ] = None
    encoder_dropout: Annotated[
        float | None,
        Setting(
            "Dropout of an encoder's hidden states, attention and head in training.",
            "share",
            at_least=0,
            below=1,
        ),
    ] = None
    features: Annotated[
        str | None,
        Setting("Public features of a small head: patches, scattering, a folder or a model."),
    ] = None
    feature_norm: Annotated[
        str | None,
        Setting("How features are normalised: parts such as group, pool, leaves, unit, with +."),
    ] = None
    feature_axes: Annotated[
        int | None,
        Setting("Principal axes of synthetic inputs that features are put on.", "axes", at_least=1),
    ] = None
    patch_filters: Annotated[
        int | None, Setting("Filters of features=patches (512).", "filters", at_least=1)
    ] = None
    patch_size: Annotated[int | None, Setting("Side of a patch (6).", "pixels", at_least=2)] = None
    patch_places: Annotated[
        int | None, Setting("Parts on a side of the image, each with its means (2).", at_least=1)
    ] = None
    patch_scales: Annotated[
        int | None, Setting("Sizes of the image: 2 adds its half (1).", at_least=1)
    ] = None
    head_width: Annotated[
        int | None, Setting("Hidden units or channels of a head on features.", "units", at_least=1)
    ] = None
    seed: Annotated[
        int, Setting("Public seed: initial weights, partition, carriers, masks.", at_least=0)
    ] = 0
    data_dir: Annotated[
        str | None, Setting("Local mirror of the data; default FEDLSG_DATA, then the hub.")
    ] = None
    data_root: Annotated[
        str | None, Setting("Where relative paths of your data begin; default the working folder.")
    ] = None
    dataset: Annotated[
        str | None, Setting("Name of your own data set, for hf-image and hf-text.")
    ] = None
    subset: Annotated[str | None, Setting("Subset of your own data set.")] = None
    input_columns: Annotated[str | None, Setting("Columns of the inputs, with commas.")] = None
    label_column: Annotated[str | None, Setting("Column of the label.")] = None
    test_split: Annotated[str | None, Setting("Split that accuracy is measured on.")] = None
    image_background: Annotated[
        str | None, Setting("Colour, such as white, on which transparent images are put.")
    ] = None
    image_frame: Annotated[
        int | None,
        Setting("Frame or page, from 0, of image files that have several.", at_least=0),
    ] = None
    max_length: Annotated[
        int | None, Setting("Longest text; more is cut off.", "tokens", at_least=1)
    ] = None
    train_rows: Annotated[
        int | None, Setting("Train on so many rows only.", "rows", at_least=1)
    ] = None
    holdout: Annotated[
        float | None,
        Setting(
            "Share of the training rows to test on, in place of the test split.",
            "share",
            above=0,
            below=1,
        ),
    ] = None
    public_rows: Annotated[
        str | None,
        Setting(
            "Public rows to train on instead: data:NAME, data:PATH or synthetic.",
            rules=(
                needs(
                    "not deployed",
                    "it replaces training rows, and clients hold data of their own: leave it out",
                ),
            ),
        ),
    ] = None
    normalise: Annotated[
        Literal["none", "public"],
        Setting("public: inputs by mean and deviation of the public test rows."),
    ] = "none"
    augment: Annotated[
        Literal["none", "flip-crop"] | None,
        Setting(
            "How images are changed at random.",
            fallback="none",
            rules=(
                needs(
                    "not features",
                    "features are computed once, of images as they are: leave augment out",
                    of="augment!=none",
                ),
                needs(
                    "augmentation", "leave augment out ({workload} has none)", of="augment!=none"
                ),
            ),
        ),
    ] = None
    multiplicity: Annotated[
        int | None,
        Setting(
            "Augmented copies of each example, averaged.",
            "copies",
            at_least=1,
            fallback=1,
            rules=(
                needs(
                    "augment!=none",
                    "it averages augmented copies: give augment=flip-crop, too",
                    of="multiplicity>1",
                ),
            ),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Messages and records"""

    codec: Annotated[
        str,
        Setting(
            "How values are sent; fedlsg settings codec lists all.",
        ),
    ] = "float32"
    indices: Annotated[
        Literal["derived", "explicit"],
        Setting(
            "Positions follow from public data, or are sent.",
            rules=(
                needs(
                    "not chooses",
                    "these positions are sent in any case: leave indices out",
                    of="indices=explicit",
                ),
            ),
        ),
    ] = "derived"
    downlink: Annotated[
        Literal["full", "sparse"],
        Setting("Send weights (full), or the updates that a client missed (sparse)."),
    ] = "full"
    downlink_codec: Annotated[
        str | None,
        Setting(
            "How values are sent with downlink=sparse.",
            rules=(
                needs("downlink=sparse", "it is how updates go down: give downlink=sparse, too"),
                needs("goes_down", "choose one of {down_codecs}"),
                needs(
                    "noise",
                    "its grid comes from the noise: choose one of {down_floats}",
                    of=DOWN_GRID,
                ),
                needs(
                    "not factors",
                    "the noise does not reach every coordinate of factors: choose one of "
                    "{down_floats}",
                    of=DOWN_GRID,
                ),
                needs(
                    "known_noise",
                    "its grid comes from the noise in the sum: choose one of {down_floats}",
                    of=DOWN_GRID,
                ),
            ),
        ),
    ] = None
    record_updates: Annotated[bool, Setting("Keep every payload in updates/.")] = False
    evaluate_every: Annotated[
        int, Setting("Rounds between two evaluations.", "rounds", at_least=1)
    ] = 1
    evaluate_clients: Annotated[
        bool,
        Setting(
            "At the end, accuracy and loss on public test rows like each client's.",
            rules=(
                *ON_TEST_PARTS,
                needs(
                    "partition!=given",
                    "lists of rows say nothing about test rows: take a column of the data",
                ),
                needs(
                    f"trust!=server or {ANY}",
                    "the test rows of a column's values tell which clients there are, and who "
                    "takes part is the server's secret: leave evaluate_clients out",
                ),
            ),
        ),
    ] = False
    show_names: Annotated[
        bool,
        Setting(
            "Files to share show the names that a column gives clients; default numbers.",
            rules=(
                needs("not deployed", "clients of a deployment have numbers alone: leave it out"),
                needs(
                    "trust!=server",
                    "who takes part is the server's secret: leave show_names out",
                ),
            ),
        ),
    ] = False
    partial_run: Annotated[
        bool,
        Setting("In a deployment, start also where clients' budgets end before the last round."),
    ] = False
    callbacks: Annotated[
        str | None,
        Setting(
            "Called after each round: early-stopping, best-model, mlflow, wandb, own.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Where it runs"""

    engine: Annotated[
        Literal["auto", "ray", "local", "flower"],
        Setting(
            "auto: by the work; ray: Ray workers; local: this process; flower: written by flwr run."
        ),
    ] = "auto"
    device: Annotated[
        Device,
        Setting("Where models are computed; auto: CUDA in each process that finds it."),
    ] = "auto"
    precision: Annotated[Bits, Setting("Precision of the forward and backward pass.")] = "float32"
    activation_storage: Annotated[Bits, Setting("Precision in which activations are stored.")] = (
        "float32"
    )
    threads: Annotated[
        int, Setting("Threads of torch in every process.", "threads", at_least=1)
    ] = 1
    loader_workers: Annotated[
        int | None,
        Setting(
            "Processes that decode images in files ahead of a client's step, 0 for none; default: "
            "as many as there are free processors, 8 at most.",
            "processes",
            at_least=0,
        ),
    ] = None
    client_cpus: Annotated[
        int,
        Setting(
            "Processors of a Ray worker.",
            "processors",
            at_least=1,
            rules=(OF_RAY,),
        ),
    ] = 1
    client_gpus: Annotated[
        float,
        Setting(
            "GPU of a Ray worker.",
            "GPUs",
            at_least=0,
            below=inf,
            rules=(OF_RAY,),
        ),
    ] = 0.25
    workers: Annotated[
        int | None,
        Setting(
            "Ray workers of a run, at most; default as many as fit.",
            "workers",
            at_least=1,
            rules=(OF_RAY,),
        ),
    ] = None
    data_from: Annotated[
        Literal["node", "driver"] | None,
        Setting(
            "Where Ray workers have the data from: their node, or sent by the driver.",
            rules=(OF_RAY,),
        ),
    ] = None
    round_timeout: Annotated[
        float,
        Setting("Longest wait for a round.", "seconds", above=0, below=inf),
    ] = 3600.0
    client_timeout: Annotated[
        float | None,
        Setting(
            "Longest wait for a client; engine=auto is ray then.",
            "seconds",
            above=0,
            below=inf,
        ),
    ] = None
    run_dir: Annotated[str | None, Setting("Run directory; fedlsg run takes it as --out.")] = None


@dataclass(frozen=True, kw_only=True)
class Settings(Processes, Messages, SimulatedTime, Federation, Privacy, Data):
    """What a user said; None means "the workload's own", or "none". The ``fallback`` of a setting
    is then used.

    The groups are in the order of config.toml from the last one to the first.
    """

    parameters: dict[str, Any] = field(default_factory=dict, hash=False)
    """Settings of method, mechanism, server and codec, by name:
    ``fedlsg.simulations.settings.settings`` lists them.
    """

    @property
    def tests_private_rows(self) -> bool:
        """Whether the test rows are held-out training rows, which no epsilon covers."""
        return self.holdout is not None and self.public_rows is None


@dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """What a run uses: the gaps are filled. None is left where there is nothing to say.

    ``epsilon`` is None without a target, ``noise_multiplier`` where clients have different ones or
    none; of ``sample_rate`` and ``batch_size`` one is None; what says more about data or model may
    be None as before.
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
    partition: str
    alpha: float
    shards_per_client: int


HEADS = ("linear", "mlp", "cnn")
"""Models of ``fedlsg.simulations.models.small``, which torch need not be imported for."""


def void(preset: Mapping[str, object], given: Mapping[str, object], *, silent: bool) -> set[str]:
    """Settings of a preset, of a paper or a workload, that a given one replaces or leaves without
    meaning.

    A noise multiplier, or no noise (``silent``), drops the epsilon; a batch size the rate, and a
    rate the batch size; an optimizer other than SGD the momentum, and another optimizer the
    options; a model that is not a head the features; a constant learning rate its final value.
    """
    gone: set[str] = set()
    if silent or "noise_multiplier" in given:
        gone.add("epsilon")
    if "batch_size" in given:
        gone.add("sample_rate")
    if "sample_rate" in given:
        gone |= {"batch_size", "sampling"}
    before = str(preset.get("optimizer", "sgd")).lower()
    optimizer = str(given.get("optimizer", before)).lower()
    if optimizer != "sgd":
        gone.add("momentum")
    if "optimizer" in preset and optimizer != before:
        gone.add("optimizer_options")
    if given.get("model", "cnn") not in HEADS:
        gone |= {"features", "feature_norm", "feature_axes"}
    if given.get("schedule") == "constant":
        gone.add("final_learning_rate")
    return gone
