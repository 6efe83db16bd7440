"""The figures that Wang et al. (2022) print: averages over languages, on the paper's three tasks.

PI: paraphrase identification (accuracy, then F1), QA: question–answer matching, NC: news classification (accuracy).
Table 4's "all layers" row of QA (0.6373) repeats Table 3's FedProx+FedKC row; Table 3 has 0.6355 there.
"""

# Table 3 (and, below the line, Table 4).
AVERAGES: dict[str, dict[str, float]] = {
    "central (all languages)": {"PI": 0.8760, "PI F1": 0.8647, "QA": 0.6945, "NC": 0.8601},
    "central (dominant only)": {"PI": 0.8190, "PI F1": 0.7761, "QA": 0.6627, "NC": 0.7732},
    "FedAvg": {"PI": 0.7110, "PI F1": 0.7325, "QA": 0.5994, "NC": 0.7672},
    "FedProx": {"PI": 0.7990, "PI F1": 0.7830, "QA": 0.6080, "NC": 0.7650},
    "MOON": {"PI": 0.7955, "PI F1": 0.7819, "QA": 0.6274, "NC": 0.7417},
    "FedMix": {"PI": 0.7242, "PI F1": 0.7443, "QA": 0.6317, "NC": 0.7335},
    "FedAvg+KC (last)": {"PI": 0.8026, "PI F1": 0.7855, "QA": 0.6328, "NC": 0.7783},
    "FedAvg+KC (all)": {"PI": 0.8204, "PI F1": 0.7984, "QA": 0.6355, "NC": 0.7840},
    "FedProx+KC (all)": {"PI": 0.8194, "PI F1": 0.7992, "QA": 0.6373, "NC": 0.7795},
    "FedAvg+KC (last), no k-means": {"PI": 0.7820, "QA": 0.6165, "NC": 0.7707},
    "FedAvg+KC (all), no k-means": {"PI": 0.8047, "QA": 0.6336, "NC": 0.7618},
}
# Figure 3: gain of 5 and 7 active clients over 2, NC. Figure 4: Hits@90.
ACTIVE_GAIN = {5: 0.119, 7: 0.150}
HITS_90 = {"last": 0.461, "all": 0.156}
