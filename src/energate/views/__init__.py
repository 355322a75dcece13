"""What tools ask of fitted estimators: a view for each kind, and what is built on views."""

from energate.views import classes, labels, pairs, refiner, scorer  # they register themselves
from energate.views.applying import apply_table
from energate.views.checking import check
from energate.views.explaining import account_of, check_explainable, describe, explain, trajectory
from energate.views.fitting import fit_table
from energate.views.meaning import Meaning, MeaningWarning, measure_meaning
from energate.views.restoring import Hole, restore_pictures
from energate.views.view import KINDS, Command, Output, View, register, register_installed, set_precision, view_of

__all__ = [
    "KINDS",
    "Command",
    "Hole",
    "Meaning",
    "MeaningWarning",
    "Output",
    "View",
    "account_of",
    "apply_table",
    "check",
    "check_explainable",
    "classes",
    "describe",
    "explain",
    "fit_table",
    "labels",
    "measure_meaning",
    "pairs",
    "refiner",
    "register",
    "restore_pictures",
    "scorer",
    "set_precision",
    "trajectory",
    "view_of",
]

register_installed()
