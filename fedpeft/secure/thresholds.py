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
rounds have the fewest holders at which the following hold but for small probabilities, see
``tails``. The holders are a random subset that no one chose, see ``fedpeft.secure.holders``.

- With n - q random clients lost, and holders who refuse, each owner has t shares: DELIVERY.
- No client has more than c_k colluders among its holders, and 2 t > k + c_k: SECRECY / 2.
- The holders of all honest clients have at most C colluders, by Chernoff's bound: SECRECY / 2.
- An honest holder refuses with probability REFUSAL at most.
- The sum is over a tenth of the clients at least.

SECRECY is that small because a server may prepare rounds again and again, under new numbers and in
new runs, until their holders suit it; and because the noise of clients is calibrated to |T|, so
that its delta has to cover the failures.
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
DELIVERY = 5e-5  # probability that a round has no sum although n - q clients at most are lost
SECRECY = 1e-10  # probability that a round has an unsafe choice of holders
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


def threshold(clients: int, colluders: int, chosen: int = 0) -> int:
    """Return q for a round of n ``clients``.

    Args:
        clients: n, those asked.
        colluders: c, those of them that work together with the server.
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


def sharing_of(asked: int, colluders: int, survivors: int, clients: int = 0) -> Sharing:
    """Return who shares with how many in a round.

    Args:
        asked: clients of a round, as the experiment says.
        colluders: c.
        survivors: q, see ``threshold``.
        clients: n, those that all members know; 0 = all that are asked. The sums of fewer have at
            least as many clients.

    Raises:
        UserError: the numbers are not safe.
    """
    made = _sharing(asked, colluders, survivors)
    if made and 0 < clients < asked:
        made = _at_least(made, clients, colluders)
    if made is None:
        raise UserError(
            f"secure.threshold = {survivors}: not safe with {clients or asked} of {asked} clients "
            f"in a round and {colluders} colluders; expected more"
        )
    return made


@lru_cache(maxsize=4096)
def _sharing(clients: int, colluders: int, survivors: int) -> Sharing | None:
    """Return the numbers of a round; None if they are not safe."""
    if clients <= COMPLETE:
        return _with_all(clients, colluders, survivors, 2)
    least = clients // 10
    return _few(clients, colluders, survivors, _FEWEST, least) or _with_all(
        clients, colluders, survivors, least
    )


@lru_cache(maxsize=4096)
def _at_least(made: Sharing, clients: int, colluders: int) -> Sharing | None:
    """Return the numbers for fewer clients, for sums of as many as those of ``made``; or None."""
    few = _few(clients, colluders, made.survivors, made.holders, made.least)
    return few or _with_all(clients, colluders, made.survivors, made.least)


def _few(clients: int, colluders: int, survivors: int, first: int, least: int) -> Sharing | None:
    """Return the numbers with the fewest holders, from ``first``; None if none are safe."""
    for holders in range(first, min(sharing.MOST + 1, clients)):
        made = with_holders(clients, colluders, survivors, holders)
        if made and made.least >= least:
            return made
    return None


def _with_all(clients: int, colluders: int, survivors: int, least: int) -> Sharing | None:
    """Return the numbers if all hold shares; None if sums of fewer than ``least`` can be read."""
    if clients > sharing.MOST or 2 * survivors <= clients + colluders:
        return None
    honest, lost = survivors - colluders, clients - survivors
    read = ceil(honest - (clients - colluders) * lost / honest)
    return Sharing(survivors, clients, survivors, lost, read) if read >= least else None


def with_holders(clients: int, colluders: int, survivors: int, holders: int) -> Sharing | None:
    """Return the numbers with k ``holders``; None if both secrets of a client may be revealed."""
    others, lost, honest = holders - 1, clients - survivors, clients - colluders
    failure = SECRECY / 2
    needed, refused = _needed(clients, survivors, holders), _most_lost(clients, lost, holders)
    colluding = tails.hypergeometric(clients - 1, colluders, others)
    if 2 * needed <= holders + tails.exceeded(colluding, failure / clients):
        return None
    mean = honest * others * colluders / (clients - 1)
    total = tails.sum_exceeded(mean, failure) if colluders else 0.0
    least = ceil(survivors - colluders - (honest * refused + total) / needed)
    return Sharing(survivors, holders, needed, refused, least)


def _needed(clients: int, survivors: int, holders: int) -> int:
    """Return t: the other holders of each client have as many shares, of those that stay."""
    # Of a lost client; one that survived misses one of these, and has its own share.
    stay = tails.hypergeometric(clients - 1, min(survivors, clients - 1), holders - 1)
    if survivors < clients:  # nobody refuses if nobody is lost
        stay = stay @ tails.thinning(sharing.MOST, 1 - REFUSAL)[:holders, :holders]
    return tails.reached(stay, DELIVERY / clients)


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
    return next((q for q in stay if _with_all(clients, colluders, q, ceil(half))), clients)


def _first_safe(clients: int, colluders: int, first: int = 1) -> int:
    """Return the least q from ``first`` that is safe, where all clients would be."""

    def safe(survivors: int) -> bool:
        return _sharing(clients, colluders, survivors) is not None

    return first + bisect_left(range(first, clients), True, key=safe)


def _most_colluders(clients: int) -> int:
    def unsafe(colluders: int) -> bool:
        return _sharing(clients, colluders, clients) is None

    return max(0, min(bisect_left(range(clients), True, key=unsafe) - 1, clients - 2))
