"""What of a model, of rows and of test rows is refused before anybody is charged."""
