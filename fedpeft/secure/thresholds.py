"""How many clients have to stay, and hold shares, so that no lie about who stayed reveals much.

A round has n clients, of which c collude with the server. Each shares its two secrets, self-mask
and key, among k holders, itself included; t shares reveal a secret. A malicious server may name
other survivors to each client. A holder reveals one share for each member that chose it: of the key
if the member is called lost, otherwise of the self-mask. It insists on q survivors of the n, and
lets at most l of the members that chose it be called lost.

- *One client's two secrets* take 2 t shares. Honest holders reveal one, colluders both, so k + c_i
  are all there are, with c_i colluders among the holders of client i. There are too few if
  2 t > k + c_i.
- *Other clients' keys.* Say the server reads the sum over a set T, whose keys stay secret. Each
  client of T shares masks with at least q - c honest members, itself included, so the keys of at
  least q - c - |T| honest clients outside of T must be revealed. That takes t - c_i honest holders
  of each who are told that it is lost, and all honest clients together call clients lost at most
  (n - c) l times. With the sum C of the c_i of these clients, t (q - c - |T|) <= (n - c) l + C.

All are holders (k = n, t = q, c_i = c, l = n - q) in rounds of up to COMPLETE clients. Larger
rounds have the fewest holders at which the following hold but for a probability of FAILURE, see
``tails``. The holders are a random subset that no one chose, see ``fedpeft.secure.holders``.

- With n - q random clients lost, and holders who refuse, each owner has t shares: FAILURE / 2.
- No client has more than c_k colluders among its holders, and 2 t > k + c_k: FAILURE / 4.
- The holders of all honest clients have at most C colluders, by Chernoff's bound: FAILURE / 4.
- An honest holder refuses with probability REFUSAL at most.
- The sum is over a tenth of the clients at least.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from fedpeft.errors import UserError
from fedpeft.secure import sharing, tails

MOST = 4096  # clients of a round: the server agrees with (n - q) q pairs of them on a mask
COMPLETE = 128  # up to here all clients hold shares; few holders prove less and save little
FAILURE = 1e-4  # of a round
REFUSAL = 0.01  # of an honest holder
_LEAST_STAY = 0.8  # of the clients, by default, where few hold shares
_FEWEST = 8  # holders


@dataclass(frozen=True)
class Sharing:
    """The numbers of a round.

    Attributes:
        survivors: q, clients that each client insists on.
        holders: k, clients that hold shares of one's secrets, itself included.
        needed: t, shares that reveal a secret.
        lost: l, members whose shares a client holds that may be called lost.
        least: |T|, honest clients in every sum that a malicious server can read, at least.
    """

    survivors: int
    holders: int
    needed: int
    lost: int
    least: int


def least_sum(clients: int, colluders: int, survivors: int) -> int:
    """Return how many honest clients are in every sum that a malicious server can read, at least.

    With few holders this fails with a probability of FAILURE / 2 a round, see the module.

    Args:
        clients: n, those asked in a round, and that all members know.
        colluders: c, those of them that work together with the server.
        survivors: q, that a client insists on.
    """
    made = _sharing(clients, colluders, survivors)
    return made.least if made else 1


def sharing_of(clients: int, colluders: int, survivors: int) -> Sharing:
    """Return who shares with how many in a round of n ``clients``.

    Args:
        clients: n, those that all members know.
        colluders: c.
        survivors: q, see ``threshold``.

    Raises:
        UserError: the numbers are not safe.
    """
    made = _sharing(clients, colluders, survivors)
    if made is None:
        raise UserError(
            f"secure.threshold = {survivors}: not safe with {clients} clients in a round and "
            f"{colluders} colluders; leave it out"
        )
    return made


def threshold(clients: int, colluders: int, chosen: int = 0) -> int:
    """Return q for a round of n ``clients``.

    Args:
        clients: n, those asked.
        colluders: c.
        chosen: q, safe if ``Sharing.least`` is two, or a tenth of the clients if few hold shares;
            0 = the least at which each sum has half of the honest clients, or four fifths.

    Raises:
        UserError: no q is safe, or the chosen one is not.
    """
    if clients - colluders < 2 or _sharing(clients, colluders, clients) is None:
        raise UserError(
            f"secure.colluders = {colluders}: of {clients} clients in a round; expected at most "
            f"{_most_colluders(clients)}, so that a malicious server reads no single update"
        )
    if not chosen:
        return _usual(clients, colluders)
    if not (chosen <= clients and _sharing(clients, colluders, chosen)):
        raise UserError(
            f"secure.threshold = {chosen}: expected {_first_safe(clients, colluders)} to "
            f"{clients}, because with {clients} clients a round and {colluders} colluders fewer "
            f"would let a malicious server read single updates"
        )
    return chosen


@lru_cache(maxsize=4096)
def _sharing(clients: int, colluders: int, survivors: int) -> Sharing | None:
    """Return the numbers of a round; None if they are not safe."""
    few = _few(clients, colluders, survivors) if clients > COMPLETE else None
    if few or clients > sharing.MOST:
        return few
    least = _least_of_all(clients, colluders, survivors)
    made = Sharing(survivors, clients, survivors, clients - survivors, least)
    return made if least > 1 else None


def _least_of_all(clients: int, colluders: int, survivors: int) -> int:
    """Return |T| if all hold shares; 1 if both secrets of a client may be revealed."""
    if 2 * survivors <= clients + colluders:
        return 1
    honest = survivors - colluders
    return max(1, ceil(honest - (clients - colluders) * (clients - survivors) / honest))


def _few(clients: int, colluders: int, survivors: int) -> Sharing | None:
    """Return the numbers with the fewest holders; None if no number of holders is safe."""
    for holders in range(_FEWEST, min(sharing.MOST, clients) + 1):
        made = with_holders(clients, colluders, survivors, holders)
        if made and made.least >= clients // 10:
            return made
    return None


def with_holders(clients: int, colluders: int, survivors: int, holders: int) -> Sharing | None:
    """Return the numbers with k ``holders``; None if both secrets of a client may be revealed."""
    others, lost, honest = holders - 1, clients - survivors, clients - colluders
    needed, refused = _needed(clients, survivors, holders), _most_lost(clients, lost, holders)
    colluding = tails.hypergeometric(clients - 1, colluders, others)
    most = tails.exceeded(colluding, FAILURE / 4 / clients)
    if 2 * needed <= holders + most:
        return None
    mean = honest * others * colluders / (clients - 1)
    total = tails.sum_exceeded(mean, FAILURE / 4) if colluders else 0.0
    least = ceil(survivors - colluders - (honest * refused + total) / needed)
    return Sharing(survivors, holders, needed, refused, least)


def _needed(clients: int, survivors: int, holders: int) -> int:
    """Return t: the other holders of each client have as many shares, of those that stay."""
    # Of a lost client; one that survived misses one of these, and has its own share.
    stay = tails.hypergeometric(clients - 1, min(survivors, clients - 1), holders - 1)
    if survivors < clients:  # nobody refuses if nobody is lost
        stay = stay @ tails.thinning(sharing.MOST, 1 - REFUSAL)[:holders, :holders]
    return tails.reached(stay, FAILURE / 2 / clients)


def _most_lost(clients: int, lost: int, holders: int) -> int:
    """Return l: a holder of one lost client holds shares of other lost ones, too."""
    if not lost:
        return 0
    others = tails.binomial(lost - 1, (holders - 1) / (clients - 1))
    return 1 + tails.exceeded(others, REFUSAL)


def _usual(clients: int, colluders: int) -> int:
    if clients > COMPLETE:
        return _first_safe(clients, colluders, ceil(_LEAST_STAY * clients))
    half = max(2, (clients - colluders) / 2)
    stay = range(1, clients)
    return next((q for q in stay if least_sum(clients, colluders, q) >= half), clients)


def _first_safe(clients: int, colluders: int, first: int = 1) -> int:
    """Return the least q from ``first`` that is safe, where all clients would be."""
    stay = range(first, clients)
    place = bisect_left(stay, True, key=lambda q: _sharing(clients, colluders, q) is not None)
    return first + place


def _most_colluders(clients: int) -> int:
    place = bisect_left(range(clients), True, key=lambda c: _sharing(clients, c, clients) is None)
    return max(0, min(place - 1, clients - 2))
