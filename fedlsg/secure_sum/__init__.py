"""Sums of integer vectors modulo 2^b whose single summands the server does not see: SecAgg+ (Bell et al. 2020).

    from                     to        what leaves
    ``Client.keys``          server    two public keys and a commitment                        stage 0
    ``Server.rosters``       clients   public keys of the neighbours
    ``Client.shares``        server    sealed shares of the two secrets for each neighbour     stage 1
    ``Server.deliveries``    clients   the shares that are for them
    ``Client.accept, masked``  server  x_i + PRG(b_i) + sum of +-PRG(s_ij) mod 2^b             stage 2
    ``Server.requests``      clients   the set of survivors, fixed
    ``Client.unmask``        server    one share for each neighbour: b_j or the mask key       stage 3
    ``Server.total``                   the sum

Threat model. The server is honest but curious: it follows the protocol, keeps all that it sees, and up to t clients
show it all that they know. Then it learns the sum over the survivors (so, without the colluders' inputs, the sum over
at least m - t honest ones) and which clients took part, and nothing else. That is computational: it rests on X25519,
HKDF-SHA-256, ChaCha20 and AES-256-GCM. An attempt that is given up reveals no sum.

Not covered: a server that deviates. It could put its own keys into a roster (keys are not signed: nobody but the server
says whose they are), invent clients beyond t, send clients different rosters or survivors, or count a client as absent
whose masked vector it holds. Clients compare no sets with each other. They still refuse all that one of them can see
(``client``), and the thresholds keep a server that reports different survivors, with t colluders, from both secrets of
one client (``graph``). Clients that send wrong values are not covered either: the sum is then wrong.

What the caller must do: keep one ``Client`` for each attempt, and never a second one for the same terms; store it
(``export``) before an answer is sent; and never put the same noisy input into two attempts once ``unmask`` has been
answered in the first. The difference of two sums with different survivors is the input of single clients, and the
protocol cannot know whether two inputs are the same.

Differs from the paper: graph and thresholds hold in the worst case (``graph``); a client also holds a share of its
own secrets; self-mask seeds are committed to; shares are made by polynomials over a prime field; the digest of all
terms is in every key.
"""

from fedlsg.secure_sum.client import Client
from fedlsg.secure_sum.graph import GraphPlan, plan_graph
from fedlsg.secure_sum.keys import reproducible_root, secret_root
from fedlsg.secure_sum.outcome import GivenUp, SecureSumError
from fedlsg.secure_sum.server import Server, Total
from fedlsg.secure_sum.terms import Terms

__all__ = [
    "Client", "GivenUp", "GraphPlan", "SecureSumError", "Server", "Terms", "Total", "plan_graph", "reproducible_root",
    "secret_root",
]  # fmt: skip
