"""The ledger: every device's every millisecond in exactly one category, in integers that sum to capacity. Pure.

`history` folds the log into who held what; `spend` says how a held span was spent, from step records; `account` adds it up for
a window. What a millisecond is booked as depends on the log and the records alone, never on the window asked for, so adjacent
windows add up; records that come late move time between categories and change no sum. An end that is heard of late gives the
time since back: to the fleet as idle, to the job as not held.
"""

from phalanx.record.telemetry.ledger.account import Account, account, account_of, cost
from phalanx.record.telemetry.ledger.categories import CATEGORIES
from phalanx.record.telemetry.ledger.history import Folding, History

__all__ = ["CATEGORIES", "Account", "Folding", "History", "account", "account_of", "cost"]
