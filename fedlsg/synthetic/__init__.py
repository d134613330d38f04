"""Synthetic public inputs: images and texts that a seed makes, from no data at all.

leaves   dead leaves: shapes of many sizes, each in front of those before it
pink     noise whose amplitude falls as a power of the frequency
words    words of a public vocabulary in random order

Each is a function of its arguments and a CPU generator, so whatever is computed from it costs no privacy.
"""

from fedlsg.synthetic.leaves import dead_leaves
from fedlsg.synthetic.pink import pink
from fedlsg.synthetic.words import Vocabulary, bags_of_words

__all__ = ["Vocabulary", "bags_of_words", "dead_leaves", "pink"]
