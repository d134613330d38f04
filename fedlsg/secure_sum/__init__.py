"""Sums of integer vectors modulo 2^b whose single summands the server does not see: SecAgg+ (Bell
et al. 2020).

    stage  from                     to       what leaves
    0      ``Client.keys``          server   two public keys and a commitment
           ``Server.rosters``       clients  public keys of the others
    1      ``Client.shares``        server   sealed shares of the two secrets for each neighbour
           ``Server.deliveries``    clients  the shares that are for them
    2      ``Client.accept, masked``  server  x_i + PRG(b_i) + sum of +-PRG(s_ij) mod 2^b
           ``Server.survivors``     clients  the set of survivors, fixed
    3      ``Client.agree``         server   for each other survivor a tag on all sets and keys
           ``Server.requests``      clients  the tags that are for them
    4      ``Client.unmask``        server   one share for each neighbour: b_j or the mask key
           ``Server.total``                  the sum

The integers that are added up have noise of their own, a discrete Gaussian on a grid:
``secure_sum.discrete``.

Threat model. The server sees all messages, and up to t clients show it all that they know. It may
**lie about sets and keys**: tell clients different rosters, sharers or survivors, show them keys of
earlier attempts or of other clients, tell one client different things in two messages, repeat or
leave out messages. It then learns the sum over one set of at least m survivors (so, without the
colluders' inputs, the sum over at least m - t honest ones) and which clients took part, and nothing
else; ``terms`` has the proof. That is computational: it rests on X25519, HKDF-SHA-256, ChaCha20 and
AES-256-GCM. An attempt that is given up reveals no sum.

Assumed of the server: a client in whose place it shows anybody a share key of its own counts as one
of the t. **Not covered** are more of these. Keys are not signed, and nobody but the server says
whose they are: one that shows a client its own keys in place of all others' reads that client's
vector. So it can also invent clients beyond t. Nor is anything promised of a server that leaves
clients out, counts one as absent whose masked vector it holds, reports a wrong sum, or lies about
the model. Clients that send wrong values are not covered either: the sum is then wrong.

What the caller must do: keep one ``Client`` for each attempt, and never a second one for the same
terms (so begin no attempt of a run that is not later than the last one); store it (``export``)
before an answer is sent; and never put the same noisy input into two attempts once ``unmask`` has
been answered in the first. The difference of two sums with different survivors is the input of
single clients, and the protocol cannot know whether two inputs are the same.

Differs from the paper: graph and thresholds hold in the worst case (``terms``). Clients agree on
the sets as in the consistency round of Bonawitz et al. 2017, and on all public keys, with tags
under pairwise keys where these sign; so there is no key infrastructure, and only survivors can
check a tag. A client also holds a share of its own secrets; self-mask seeds are committed to;
shares are made by polynomials over a prime field; the digest of all terms is in every key, and that
of the whole roster in the keys that seal shares.
"""

from fedlsg.secure_sum.client_attempt import Client
from fedlsg.secure_sum.keys import reproducible_root, secret_root
from fedlsg.secure_sum.server_attempt import Server, Total
from fedlsg.secure_sum.terms import GivenUp, GraphPlan, SecureSumError, Terms, plan_graph

__all__ = [
    "Client",
    "GivenUp",
    "GraphPlan",
    "SecureSumError",
    "Server",
    "Terms",
    "Total",
    "plan_graph",
    "reproducible_root",
    "secret_root",
]
