"""Whether speculation leaves what a model says as it is: by enumeration, and by tests of a model with its drafter."""
