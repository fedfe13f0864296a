"""Arrays and a linear classifier of scikit-learn: its coefficients are the last layer of a network."""

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import flatfold as ff

X, y = load_digits(return_X_y=True)  # yours: arrays (n, d), and classes 0 to c - 1
X, known = X.astype("float32") / 16, y < 6
X_train, X_rest, y_train, y_rest = train_test_split(X[known], y[known], train_size=0.5, random_state=0)
X_val, X_test, y_val, y_test = train_test_split(X_rest, y_rest, train_size=0.7, random_state=0)
classifier = LogisticRegression(max_iter=1000).fit(X_train, y_train)

classes, width = classifier.coef_.shape
model = torch.nn.Linear(width, classes)
model.load_state_dict({"weight": torch.tensor(classifier.coef_), "bias": torch.tensor(classifier.intercept_)})

guard = ff.Guard.fit(model, (X_val, y_val), fpr=0.05)
for name, rows in (("0 to 5", X_test), ("6 to 9", X[~known])):
    alarms = guard(torch.tensor(rows)).is_ood
    print(f"digits {name}: {alarms.float().mean():.0%} of {len(rows)} raise an alarm")
