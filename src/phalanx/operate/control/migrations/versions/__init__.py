"""One file a revision, in order. A revision that was released is never edited: it spells out its tables itself."""
