"""How many clients have to stay, so that no lie about who stayed reveals a small sum.

A malicious server may name other survivors to each client. It has t of n clients as holders of a
secret's shares, of which c collude with it. Honest holders reveal for each client either a share of
its self-mask or one of its key, and call at most n - t clients lost.

- Self-mask and key of one client take 2 (t - c) honest holders, more than n - c if 2 t > n + c. So
  the updates that the server can read are those of a set T whose keys stay secret.
- Each client of T shares masks with t - c honest members, itself included, so at least t - c - |T|
  of them are outside of T, and their keys must be revealed. That takes t - c honest holders each,
  who together call clients lost at most (n - c) (n - t) times. Hence
  |T| >= t - c - (n - c) (n - t) / (t - c).
"""

from __future__ import annotations

from math import ceil

from fedpeft.errors import UserError


def least_sum(clients: int, colluders: int, needed: int) -> int:
    """Return how many honest clients are in every sum that a malicious server can read, at least.

    Args:
        clients: n, those asked in a round, and that all members know.
        colluders: c, those of them that work together with the server.
        needed: t, shares that reveal a secret, and survivors that a client insists on.
    """
    if 2 * needed <= clients + colluders:
        return 1
    honest = needed - colluders
    return max(1, ceil(honest - (clients - colluders) * (clients - needed) / honest))


def threshold(clients: int, colluders: int, chosen: int = 0) -> int:
    """Return t for a round of n ``clients``.

    Args:
        clients: n, those asked.
        colluders: c.
        chosen: t, safe if each sum has two honest clients; 0 = the least at which each sum has half
            of the honest clients.

    Raises:
        UserError: no t is safe, or the chosen one is not.
    """
    safe = [t for t in range(1, clients + 1) if least_sum(clients, colluders, t) > 1]
    if clients - colluders < 2 or not safe:
        raise UserError(
            f"secure.colluders = {colluders}: of {clients} clients in a round; expected at most "
            f"{max(0, clients - 2)}, so that two are honest"
        )
    if chosen and not safe[0] <= chosen <= clients:
        raise UserError(
            f"secure.threshold = {chosen}: expected {safe[0]} to {clients}, because with "
            f"{clients} clients a round and {colluders} colluders fewer would let a malicious "
            f"server read single updates"
        )
    half = max(2, (clients - colluders) / 2)
    usual = next((t for t in safe if least_sum(clients, colluders, t) >= half), clients)
    return chosen or usual
