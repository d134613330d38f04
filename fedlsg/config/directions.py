"""Whether higher values of a metric are better: declared with the metric, or known by its name.

    metrics={"gini": fedlsg.Lower(gini)}
    higher_is_better("gini", fedlsg.Lower(gini))     False
    higher_is_better("macro_f1")                     True
    higher_is_better("gini")                         None: unknown, so the user must declare it

Whatever ranks rounds, trials or runs by a number asks ``higher_is_better``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class DirectedMetric:
    """A metric with its direction, which is called as the metric itself."""

    metric: Callable[[Any, Any], Any]
    higher_is_better: ClassVar[bool]

    def __post_init__(self) -> None:
        if not callable(self.metric) or isinstance(self.metric, DirectedMetric):
            raise ValueError(
                f"fedlsg.{type(self).__name__}({type(self.metric).__name__}): expected a function "
                "metric(outputs, targets)"
            )

    def __call__(self, outputs: Any, targets: Any) -> Any:
        return self.metric(outputs, targets)


class Higher(DirectedMetric):
    """A metric of which more is better: ``metrics={"gain": fedlsg.Higher(gain)}``.

    Raises ValueError for anything that is not a function.
    """

    higher_is_better = True


class Lower(DirectedMetric):
    """A metric of which less is better: ``metrics={"cost": fedlsg.Lower(cost)}``.

    Raises ValueError for anything that is not a function.
    """

    higher_is_better = False


_HIGHER = """
accuracy acc top1 top5 f1 f2 fbeta f_beta f_measure precision recall sensitivity specificity
tpr tnr ppv npv true_positive_rate true_negative_rate positive_predictive_value
negative_predictive_value auc auroc roc_auc rocauc pr_auc prauc auprc aucpr ap map
hits hit_rate success_rate exact_match em ndcg dcg mrr reciprocal_rank mcc matthews
matthews_corrcoef kappa cohen_kappa cohens_kappa jaccard iou miou dice r2 r_squared
explained_variance pearson pearsonr spearman spearmanr kendall kendalltau correlation corr
corrcoef concordance concordance_index c_index cindex ccc bleu sacrebleu rouge rouge_l rougel
rouge_lsum rougelsum meteor chrf chr_f bertscore bert_score comet cider psnr ssim ms_ssim
inception_score hamming_score likelihood log_likelihood loglikelihood elbo gmean g_mean ari nmi
"""
_LOWER = """
loss losses error errors err error_rate mae mse rmse msle rmsle mape smape wape wmape mase
nmae nmse nrmse rae rse medae misclassification misclassification_rate deviance perplexity ppl
wer cer ter eer der fpr fnr fdr false_positive_rate false_negative_rate
false_discovery_rate miss_rate brier ece mce nll negative_log_likelihood logloss cross_entropy
crossentropy bce kl kl_divergence js_divergence divergence hamming hamming_distance
edit_distance levenshtein hausdorff hausdorff_distance hd chamfer pinball crps wasserstein emd
fid kid lpips bpb bpc bpd bits_per_byte bits_per_character bits_per_dim bits_per_token
"""
_QUALIFIERS = """
test val valid validation eval dev macro micro weighted balanced samples mean avg average median
overall total binary multiclass multilabel score top at k
"""
_NOT_ENDS = """
neg negative minus one no non not without inverse inverted reciprocal attack attacker adversary
"""
HIGHER, LOWER = tuple(_HIGHER.split()), tuple(_LOWER.split())
"""Names of metrics of which more, or less, is better; with any ``QUALIFIERS`` and numbers."""
QUALIFIERS = frozenset(_QUALIFIERS.split())
"""Words of a name that do not change the direction."""
NEGATIVE = ("neg", "negative", "minus")
"""First words that turn the rest round, as in scikit-learn's ``neg_mean_squared_error``."""
ENDS = re.compile(r"(^|_)(loss|losses|error|errors|err|error_rate)$")
"""Ends of any other name of which less is better, unless it has a word of ``NOT_ENDS``."""
NOT_ENDS = frozenset(_NOT_ENDS.split())
"""Words that make the direction of such a name unknown."""
PARTS = re.compile(r"(?<=[a-z]{2})(?=[A-Z])|(?<=\d)(?=[A-Z][a-z])")
"""Places between two words of a name in camel case."""
WORD = re.compile(r"[^\W\d_]+\d*|\d+")


def higher_is_better(name: str, metric: object = None) -> bool | None:
    """Whether more is better of a metric, as it declares or by its name; None if that is unknown.

    A metric declares it by an attribute ``higher_is_better``, as ``fedlsg.Higher``,
    ``fedlsg.Lower`` and metrics of torchmetrics have it.
    """
    declared = getattr(metric, "higher_is_better", None)
    return _by_name(name) if declared is None else bool(declared)


def _by_name(name: str) -> bool | None:
    """The direction by a name; None if it is unknown, also for a leading number or minus sign."""
    words = WORD.findall(PARTS.sub("_", name).lower())
    if not words or words[0].isdigit() or name.lstrip().startswith("-"):  # as in "1 - accuracy"
        return None
    return _by_words(words)


def _by_words(words: list[str]) -> bool | None:
    """The direction by the words of a name, at least one; None if it is unknown."""
    short = [word for word in map(_without_number, words) if word and word not in QUALIFIERS]
    for phrase in ("_".join(words), "_".join(short)):
        if phrase in HIGHER or phrase in LOWER:
            return phrase in HIGHER
    if words[0] in NEGATIVE and len(words) > 1:
        rest = _by_words(words[1:])
        return None if rest is None else not rest
    return False if ENDS.search("_".join(short)) and NOT_ENDS.isdisjoint(words) else None


def _without_number(word: str) -> str:
    """``acc`` for acc5, ``top`` for top5; ``f1`` stays."""
    start = word.rstrip("0123456789")
    return start if start in ("", *QUALIFIERS, *HIGHER, *LOWER) else word
