"""CPU seconds of a secure sum, and of the same work by the functions of Flower's SecAgg+.

    python -m benchmarks.privacy.secure_sum --json FILE [--clients 10 50 200] [--values 5000 100000]
    [--pairs 5]

Rounds: a whole attempt in one process with all clients, m = 80 % of them, t = 10 %, and 10 % that
drop out behind their shares. The table has the mean CPU seconds of a client in each stage and those
of the server, without any transport.

Pairs: one client with the same number of neighbours and the same threshold, interleaved:
- keys: two key pairs, shares of two secrets, their encryption for each neighbour. fedlsg:
  ``Client.keys`` and ``Client.shares``, which also agrees on the pair seeds. Flower: ``_setup`` and
  ``_share_keys`` of its client mod.
- masks: shares of all neighbours are decrypted, all masks added. fedlsg: ``Client.accept`` and
  ``Client.masked``, with packing and checksum. Flower: what ``_collect_masked_vectors`` calls for
  it (decrypt, key agreement, mask generator, addition, modulus, serialization to .npy), without its
  fit, clip and quantization, on int64 as there.
- unmask: one secret from its shares and one mask subtracted. Flower: ``combine_shares``,
  ``pseudo_rand_gen``. Lagrange's weights are computed anew each time; a round computes them once
  for each set of holders.
The work is not equal: Flower's generator folds a seed to 32 bits, draws 64-bit words and is no
cipher; its keys are on P-384 and its encryption is Fernet; it pads a secret to blocks of 16 bytes
that are shared one by one.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from flwr.client.mod.secure_aggregation.secaggplus_mod import (
    SecAggPlusState,
    _setup,
    _share_keys,
    ndarray_to_bytes,
)
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
)
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from benchmarks.pairs import interleave, parser, summary, write
from fedlsg.secure_sum import Client, GivenUp, Server, Terms, Total, secret_root
from fedlsg.secure_sum.keys import _weights, add_masks, combine, split, word

Sent = dict[int, bytes]
STAGES = ("keys", "shares", "masked", "agree", "unmask")


def make_terms(clients: int, values: int, bits: int) -> Terms:
    """m = 80 % of the clients, t = 10 %, one at least."""
    return Terms(
        run=bytes(32),
        round=1,
        attempt=0,
        clients=tuple(range(clients)),
        min_survivors=-(-clients * 8 // 10),
        colluders=max(clients // 10, 1),
        length=values,
        bits=bits,
    )


def accepted(sent: Sent | GivenUp) -> Sent:
    """The messages of a stage; RuntimeError if the attempt was given up."""
    if isinstance(sent, GivenUp):
        raise RuntimeError(str(sent))
    return sent


def whole_round(terms: Terms) -> dict[str, Any]:
    """CPU seconds by stage and side, and bytes, of one attempt. Its sum is checked."""
    seconds: dict[str, float] = dict.fromkeys((*STAGES, "server", "server unmask"), 0.0)

    def timed(name: str, make: Callable[[], Any]) -> Any:
        start = time.process_time()
        found = make()
        seconds[name] += time.process_time() - start
        return found

    def masked(client: Client, delivery: bytes) -> bytes:
        client.accept(delivery)
        return client.masked(inputs[client.client])

    rng = np.random.default_rng(0)
    inputs = {
        who: rng.integers(0, 2**terms.bits, terms.length, dtype=np.uint64) for who in terms.clients
    }
    alive = [who for who in terms.clients if who % 10 != 3]
    server = Server(terms)
    clients = {who: Client(terms, who, secret_root()) for who in terms.clients}
    up = {who: timed("keys", client.keys) for who, client in clients.items()}
    down = accepted(timed("server", partial(server.rosters, up.items())))
    shares = {who: timed("shares", partial(clients[who].shares, m)) for who, m in down.items()}
    down = accepted(timed("server", partial(server.deliveries, shares.items())))
    vectors = {who: timed("masked", partial(masked, clients[who], down[who])) for who in alive}
    down = accepted(timed("server", partial(server.survivors, vectors.items())))
    tags = {who: timed("agree", partial(clients[who].agree, m)) for who, m in down.items()}
    down = accepted(timed("server", partial(server.requests, tags.items())))
    answers = {who: timed("unmask", partial(clients[who].unmask, m)) for who, m in down.items()}
    total = timed("server unmask", partial(server.total, answers.items()))
    wanted = sum(inputs[who] for who in alive) % np.uint64(2**terms.bits)  # type: ignore[union-attr]
    if not (isinstance(total, Total) and np.array_equal(total.values, wanted)):
        raise RuntimeError("the sum is wrong")
    kinds = dict(zip(STAGES, (up, shares, vectors, tags, answers), strict=True))
    return {
        "plan": {
            "degree": terms.plan.degree,
            "threshold": terms.plan.threshold,
            "survivors": terms.min_survivors,
            "colluders": terms.colluders,
            "dropped": len(terms.clients) - len(alive),
        },
        "client": {name: seconds[name] / len(sent) for name, sent in kinds.items()},
        "server": seconds["server"] + seconds["server unmask"],
        "server unmask": seconds["server unmask"],
        "bytes up": {name: max(map(len, sent.values())) for name, sent in kinds.items()},
    }


class Flower:
    """Client 0 of Flower's SecAgg+ with its neighbours, up to each of its stages."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.who = terms, 0
        self.states = {who: self._state(who) for who in terms.holders(0)}
        self.configs = {str(who): (state.pk1, state.pk2) for who, state in self.states.items()}
        mine = self.states[0]
        self.sealed = {
            who: encrypt(
                generate_shared_key(bytes_to_private_key(state.sk2), bytes_to_public_key(mine.pk2)),
                share_keys_plaintext_concat(who, 0, bytes(52), bytes(340)),
            )
            for who, state in self.states.items()
            if who
        }
        self.vector = np.random.default_rng(0).integers(
            0, 2**terms.bits, terms.length, dtype=np.int64
        )
        self.shares = create_shares(bytes(32), terms.plan.threshold, terms.plan.degree + 1)

    def _state(self, who: int) -> Any:
        state = SecAggPlusState()
        state.nid = who
        _setup(state, self._settings())  # type: ignore[arg-type]
        return state

    def _settings(self) -> dict[str, Any]:
        plan = self.terms.plan
        return {
            Key.SAMPLE_NUMBER: len(self.terms.clients),
            Key.SHARE_NUMBER: plan.degree + 1,
            Key.THRESHOLD: plan.threshold,
            Key.CLIPPING_RANGE: 8.0,
            Key.TARGET_RANGE: 2**self.terms.bits,
            Key.MOD_RANGE: 2**self.terms.bits,
            Key.MAX_WEIGHT: 1.0,
        }

    def keys(self) -> None:
        """Key pairs, shares, encryption."""
        state = self._state(0)
        _share_keys(state, self.configs | {"0": (state.pk1, state.pk2)})  # type: ignore[arg-type]

    def masks(self) -> bytes:
        """Decryption, key agreement, masks, modulus, serialization."""
        mine, shape = self.states[0], [(self.terms.length,)]
        vectors = [self.vector]
        shared = {
            who: generate_shared_key(
                bytes_to_private_key(mine.sk2), bytes_to_public_key(self.states[who].pk2)
            )
            for who in self.sealed
        }
        for who, text in self.sealed.items():
            decrypt(shared[who], text)
        modulus = 2**self.terms.bits
        vectors = parameters_addition(vectors, pseudo_rand_gen(bytes(32), modulus, shape))
        for who in self.sealed:
            key = generate_shared_key(
                bytes_to_private_key(mine.sk1), bytes_to_public_key(self.states[who].pk1)
            )
            change = parameters_addition if mine.nid > who else parameters_subtraction
            vectors = change(vectors, pseudo_rand_gen(key, modulus, shape))
        return ndarray_to_bytes(parameters_mod(vectors, modulus)[0])

    def unmask(self) -> None:
        """One secret, one mask."""
        seed = combine_shares(self.shares[: self.terms.plan.threshold])
        parameters_subtraction(
            [self.vector], pseudo_rand_gen(seed, 2**self.terms.bits, [(self.terms.length,)])
        )


def pairs_of(terms: Terms, *, pairs: int, warmup: int) -> dict[str, Any]:
    """The arms of both, interleaved, by kind of work."""
    clients = {who: Client(terms, who, secret_root()) for who in terms.clients}
    server = Server(terms)
    rosters = accepted(server.rosters((who, client.keys()) for who, client in clients.items()))
    delivery = accepted(
        server.deliveries([(who, clients[who].shares(m)) for who, m in rosters.items()])
    )[0]
    prepared, values = [clients[0].export()] * (pairs + warmup), np.arange(terms.length)
    ready = [Client.restore(terms, 0, stored) for stored in prepared]
    shares = split(bytes(32), list(range(1, terms.plan.threshold)), range(1, terms.plan.degree + 2))
    words = np.zeros(terms.length, word(terms.bits))

    def keys() -> None:
        client = Client(terms, 0, secret_root())
        client.keys()
        client.shares(rosters[0])

    def masks() -> None:
        client = ready.pop()
        client.accept(delivery)
        client.masked(values)

    def unmask() -> None:
        _weights.cache_clear()
        add_masks(words, [(combine(shares, terms.plan.threshold), -1)])

    theirs = Flower(terms)
    found = {}
    for name, own, other in (
        ("keys", keys, theirs.keys),
        ("masks", masks, theirs.masks),
        ("unmask", unmask, theirs.unmask),
    ):
        arms: dict[str, Callable[[], object]] = {"fedlsg": own, "flower": other}
        found[name] = summary(interleave(arms, pairs=pairs, warmup=warmup), ("fedlsg",))
    return found


def main() -> None:
    """Measure, print, write."""
    options = parser(__doc__)
    options.set_defaults(pairs=5, warmup=1)
    options.add_argument("--clients", type=int, nargs="+", default=[10, 50, 200])
    options.add_argument("--values", type=int, nargs="+", default=[5_000, 100_000])
    options.add_argument("--bits", type=int, default=16)
    given = options.parse_args()
    results = []
    print(
        "| clients | values | k, h | client, CPU s | server, CPU s | kB up without values | Flower "
        "over fedlsg |"
    )
    print("|---|---|---|---|---|---|---|")
    for clients in given.clients:
        for values in given.values:
            terms = make_terms(clients, values, given.bits)
            found = whole_round(terms) | {"clients": clients, "values": values, "bits": given.bits}
            found["pairs"] = pairs_of(terms, pairs=given.pairs, warmup=given.warmup)
            results.append(found)
            over = ", ".join(
                f"{name} {arms['flower']['cpu']['over fedlsg']['median']:.1f}"
                for name, arms in found["pairs"].items()
            )
            up = sum(size for name, size in found["bytes up"].items() if name != "masked") / 1000
            print(
                f"| {clients} | {values:,} | {terms.plan.degree}, {terms.plan.threshold} | "
                f"{sum(found['client'].values()):.3f} | {found['server']:.3f} | {up:.1f} | {over} "
                "|",
                flush=True,
            )
    write(given.json, {"benchmark": "secure_sum", "results": results})


if __name__ == "__main__":
    main()
