"""A class of learners: how far each is, on a page that follows them."""
