"""What tools ask of fitted estimators: a view for each kind, and what is built on views."""

from energate.views import classes, labels, pairs, refiner, scorer  # they register themselves
from energate.views.checking import check
from energate.views.explaining import account_of, check_explainable, describe, explain, trajectory
from energate.views.view import KINDS, Command, Output, View, register, register_installed, view_of

__all__ = [
    "KINDS",
    "Command",
    "Output",
    "View",
    "account_of",
    "check",
    "check_explainable",
    "classes",
    "describe",
    "explain",
    "labels",
    "pairs",
    "refiner",
    "register",
    "scorer",
    "trajectory",
    "view_of",
]

register_installed()
