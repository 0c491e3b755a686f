"""How many clients must agree to unmask a sum.

A server that tells nodes different lists of survivors can ask some for shares of a client's
self-mask and others for shares of its key. Each honest node reveals one of the two, c colluding
ones both, so 2 t > n + c keeps one of the two secret: both would take 2 t <= (n - c) + 2 c shares.
"""

from __future__ import annotations

from fedpeft.errors import UserError


def threshold(clients: int, colluders: int, chosen: int = 0) -> int:
    """Return t, the shares that reveal a secret of a round of ``clients``.

    Args:
        clients: n, those asked.
        colluders: c, how many of them may work together with the server.
        chosen: t; 0 = the least that is safe, which tolerates the most dropouts.

    Raises:
        UserError: no t is safe, or the chosen one is not.
    """
    least = (clients + colluders) // 2 + 1
    if least > clients:
        raise UserError(
            f"secure.colluders = {colluders}: with {clients} clients a round at most "
            f"{clients - 1} may collude with the server"
        )
    if chosen and not least <= chosen <= clients:
        raise UserError(
            f"secure.threshold = {chosen}: expected {least} to {clients}, because 2 t > n + c "
            f"with n = {clients} clients a round and c = {colluders} colluders"
        )
    return chosen or least
