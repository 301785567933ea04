"""What to do about the clients: who is among the highest, who differs, in which order they stand.

    decisions = post.decide("mortality")
    decisions.highest(0.1, wrong=0.1)    # who is among the highest tenth
    decisions.flags(benchmark=0.05)      # who is above or below 0.05

Every answer comes with the error that it is expected to have, computed from draws of all clients together.
"""

from vaneb.decisions.decide import Decisions, JointPosterior
from vaneb.decisions.funnel import Funnel
from vaneb.decisions.grading import Grades
from vaneb.decisions.saved import load_posterior, save_posterior
from vaneb.decisions.selection import Flags, Ranks, Selection

__all__ = [
    "Decisions",
    "Flags",
    "Funnel",
    "Grades",
    "JointPosterior",
    "Ranks",
    "Selection",
    "load_posterior",
    "save_posterior",
]
