"""The transaction manager: work in several systems commits everywhere or nowhere, through crashes of any of them.

It knows its participants by PEP 249's two-phase extension only. ``xaqueue.TransactionManager`` is the way in.
"""
