"""What the page begins with where no documents are given: a short text and a question about it."""

TITLE = "Cape Morwen"

TEXT = """\
The lighthouse at Cape Morwen was built in 1871 from grey granite. It took eleven years, because stone could only \
be landed in calm weather. Its lamp burned whale oil until 1904, and has been electric since 1932. The tower is \
42 meters high, and 207 steps lead to the gallery.

The ferry to the island leaves every two hours from pier four. The crossing takes 35 minutes. Tickets are sold on \
board, and dogs travel free of charge. In winter the last boat goes at five o'clock.

The museum beside the tower shows the old lens, which weighs almost two tons. It is open from May to October, every \
day but Monday. The keeper's garden behind it grows herbs that once seasoned the crew's soup."""

QUESTION = "When was the lighthouse at Cape Morwen built?"
