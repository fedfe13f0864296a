"""A stream that changes half way, and a monitor that notices: ``python examples/stream.py``."""

import torch
from guard import images, trained

import flatfold as ff

HOURS, CHANGE, PER_HOUR = 8, 4, 200


def hour(number: int) -> torch.Tensor:
    """Return the images of an hour; from ``CHANGE`` on, every fifth is unknown."""
    x, _ = images(PER_HOUR, known=True, seed=100 + number)
    if number >= CHANGE:
        x[::5] = images(len(x[::5]), known=False, seed=200 + number)[0]
    return x


def main() -> None:
    """Keep a monitor for each hour, look at it when the hour is over, and merge them into one for the day."""
    guard = ff.Guard.fit(trained(), [images(1000, known=True, seed=1)], method="fold", fpr=0.05)
    day = guard.monitor()
    for number in range(HOURS):
        monitor = guard.monitor()
        monitor.add(guard(hour(number)))
        unlike = monitor.alarm_p_value < 0.001
        word = "not like the calibration data" if unlike else "as usual"
        print(f"hour {number}: {monitor.alarms:3} alarms of {monitor.seen}, drift {monitor.drift:.2f}, {word}")
        day.merge(monitor)
    print(day)


if __name__ == "__main__":
    main()
