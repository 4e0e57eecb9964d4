"""How curves are told apart, in pictures and on the page."""

# Okabe and Ito's colours, which all readers can tell apart; dashes show curves that coincide.
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000"]
STYLES = ["-", "--", ":", "-."]
