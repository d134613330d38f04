"""docs/files.md, from the declaration of all files: python -m simulations.rundir.files_page > docs/files.md"""

# ruff: noqa: E501 - rows of tables

from collections.abc import Iterable

from simulations.rundir.declared import COMMANDS, NODE, RUN, Declared

HEAD = """# Files of a run

Made by `python -m simulations.rundir.files_page`; do not edit. A run leaves one directory,
`runs/<time>-<workload>-<method>` by default. No later run
overwrites it.

| class | what is in it | who can read it |
|---|---|---|
| public | settings, released values, and results that an epsilon covers | as the umask says |
| private | computed from training data, and no epsilon covers it as it is | the owner only |
| secret | what a client never sends: rows, batches, memories without noise, keys, logs | the owner only; never publish it |

Files and folders have their mode from the moment they are made, with any umask. What is made inside a folder of its
owner only is its owner's only, too.

In these runs public files are private:

| run | its owner's only |
|---|---|
| NOT PRIVATE: a mechanism that claims no epsilon, `reproducible`, `holdout` of training rows | the whole directory |
| `trust=aggregate`: a payload alone has only a share of the noise | `updates/`, `checkpoint/outbox/` |
| `trust=server`: bytes that were sent down tell how many clients were drawn | `checkpoint/` |

`fedlsg export` writes the model where you say, as the umask says: then you publish it. To share a directory that is
NOT PRIVATE, open it with `chmod`.
"""
COMMANDS_HEAD = """
## What commands write

Next to a run, or into `--out`. All of it is computed from training rows without noise: for its owner only. `fedlsg
report`, `compare` and `export` write what the umask says; `fedlsg payload` follows the payload's own folder, `fedlsg compare --search` closes a folder of trials on held-out rows.
The cache of decoded data (`~/.cache/fedlsg`, or `FEDLSG_CACHE`) is made for its owner only; an existing folder that
others may read stays so. Its folder `accounting`, closed in any case, has what searches for noise found: the accountant checks
each entry before it is used, and no reported epsilon is read from there. `FEDLSG_HINTS=off` neither reads nor writes it.
"""
NODE_HEAD = """
## A deployed client

Its `ledger-dir` ([deployment](deployment.md)). All of it is its owner's only; fedlsg refuses a folder that others can
read.
"""
TAIL = """
[What a run leaves for other programs](outputs.md) reads the model and the updates without fedlsg.

## Numbers of bytes

| number | what it counts |
|---|---|
| `uplink_bytes` | packed payloads, including headers ([how they are packed](communication.md)) |
| `uplink_bytes_wire` | the serialised Flower messages ([each message, seconds on named links, bytes on a socket](communication.md#three-levels)) |
| `uplink_bytes_dense` | 4 bytes times all trainable parameters, for the same number of messages |
| `downlink_bytes` | the weights sent to each selected client or, with `--downlink sparse`, the [updates that it missed](communication.md#downlink) |

Savings from shared memory are not counted.

## Where the files are

On [a Ray cluster](scaling.md) the run directory is with the driver alone. Ray keeps what its workers print, and the
crash of one, in its session folder on
each node. Under `flwr run .` there is no `run.log`: the output is in Flower's log.

## Damage

`manifest.json` has a digest of every public file, `clients/manifest.json` of the others. They are written with each
checkpoint. A file that only grows has a
length and the digest up to there, so a longer tail is no damage while a run goes on. The manifest finds damage and
edits by mistake. It does not find forgery:
who can change a file can change the manifest.

Every command that reads a run directory compares all files first. If a file that it reads has changed, it ends with
an error, status 1, and names the file.
If another file has changed, it prints `changed since the run` with the name, and goes on. After your own change in
`config.toml` (data folder, device,
threads), `fedlsg resume` compares the settings with those of the checkpoint, and accepts the file. A run of an older
version has no manifest: one line says that
nothing was checked. If the manifest itself is damaged, restore it, or remove it to read the run unchecked.

`fedlsg resume` refuses a damaged file that it needs, or makes the file again. If `latest.pt` is damaged, it uses
`previous.pt`. The run reports each repair.
Measured: [flipped bits and kills](results/run_directory.md), [damages and all commands](results/faults.md).
"""


def as_markdown() -> str:
    """The page."""
    return "".join([
        HEAD, *_table(RUN), COMMANDS_HEAD, *_table(COMMANDS, "private"), NODE_HEAD, *_table(NODE), TAIL,
    ])  # fmt: skip


def _table(files: Iterable[Declared], kind: str = "secret") -> Iterable[str]:
    yield "\n| file | class | what it is | who writes it |\n|---|---|---|---|\n"
    for one in files:
        yield f"| `{one.pattern}` | {kind if one.secret else 'public'} | {one.what} | {one.writer} |\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
