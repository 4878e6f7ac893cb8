"""Figures of measurements: functions from plain records to a matplotlib Figure.

Needs the extra `report`. They change no global state of matplotlib (pyplot, rcParams).
"""

from jaxdelegate.report.plots.benchmarks import BatchPoint as BatchPoint
from jaxdelegate.report.plots.benchmarks import LatencyRuns as LatencyRuns
from jaxdelegate.report.plots.benchmarks import batch_scaling as batch_scaling
from jaxdelegate.report.plots.benchmarks import latency_distribution as latency_distribution
from jaxdelegate.report.plots.figure import save as save
from jaxdelegate.report.plots.figure import to_svg as to_svg
from jaxdelegate.report.plots.layers import LayerPoint as LayerPoint
from jaxdelegate.report.plots.layers import error_per_layer as error_per_layer
from jaxdelegate.report.plots.results import KINDS as KINDS
from jaxdelegate.report.plots.results import draw as draw
from jaxdelegate.report.plots.results import kind_of as kind_of
from jaxdelegate.report.plots.roofline import MeasuredOperator as MeasuredOperator
from jaxdelegate.report.plots.roofline import Peaks as Peaks
from jaxdelegate.report.plots.roofline import roofline as roofline
