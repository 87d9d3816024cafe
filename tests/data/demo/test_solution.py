from solution import grade


def test_the_mean_of_the_points():
    assert grade([8, 9]) == 8.5


def test_two_decimals_are_shown():
    assert grade([7, 8, 8]) == 7.67
