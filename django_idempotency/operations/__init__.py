"""Effects in other systems: operations of phases and calls that survive a kill between any two of them."""

from ..core.derivation import derive_key
from ..core.documents import NotStorable
from ..core.operations import DidNotHappen, Happened, Unknown
from ..core.states import Record
from .answers import Answer, CallInTransaction, Declined, MayNotSendAgain, Misused, OperationChanged
from .declare import Operation, operation
from .steps import Op

__all__ = [
    "Answer",
    "CallInTransaction",
    "Declined",
    "DidNotHappen",
    "Happened",
    "MayNotSendAgain",
    "Misused",
    "NotStorable",
    "Op",
    "Operation",
    "OperationChanged",
    "Record",
    "Unknown",
    "derive_key",
    "operation",
]
