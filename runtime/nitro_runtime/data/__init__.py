"""The data path: sources, and reading them ahead of the steps that use them."""

from nitro_runtime.data.agreement import check_batch_at as check_batch_at
from nitro_runtime.data.arrays import ArraySource as ArraySource
from nitro_runtime.data.arrays import arrays as arrays
from nitro_runtime.data.epoch import Pass as Pass
from nitro_runtime.data.epoch import open_epoch as open_epoch
from nitro_runtime.data.prefetch import NoPrefetch as NoPrefetch
from nitro_runtime.data.prefetch import Prefetch as Prefetch
from nitro_runtime.data.prefetch import unwrap as unwrap
from nitro_runtime.data.prefetch import wrapped as wrapped
from nitro_runtime.data.random import rng as rng
from nitro_runtime.data.source import Addressable as Addressable
from nitro_runtime.data.source import Batch as Batch
from nitro_runtime.data.source import Order as Order
from nitro_runtime.data.source import Probe as Probe
from nitro_runtime.data.source import Reseedable as Reseedable
from nitro_runtime.data.source import Source as Source
from nitro_runtime.data.source import check_source as check_source
from nitro_runtime.data.source import dropped_rows as dropped_rows
from nitro_runtime.data.source import order as order
from nitro_runtime.data.source import probe as probe
from nitro_runtime.data.source import rows as rows
