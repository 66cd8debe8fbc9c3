"""What every framework's module offers under the same names: the job, the ranks, and what there is to work with."""

from workbench import errors as _errors
from workbench.job.api import Adasum as Adasum
from workbench.job.api import Average as Average
from workbench.job.api import Max as Max
from workbench.job.api import Min as Min
from workbench.job.api import ProcessSet as ProcessSet
from workbench.job.api import Product as Product
from workbench.job.api import ReduceOp as ReduceOp
from workbench.job.api import Sum as Sum
from workbench.job.api import add_process_set as add_process_set
from workbench.job.api import barrier as barrier
from workbench.job.api import cross_rank as cross_rank
from workbench.job.api import cross_size as cross_size
from workbench.job.api import global_process_set as global_process_set
from workbench.job.api import init as init
from workbench.job.api import is_homogeneous as is_homogeneous
from workbench.job.api import is_initialized as is_initialized
from workbench.job.api import join as join
from workbench.job.api import local_rank as local_rank
from workbench.job.api import local_size as local_size
from workbench.job.api import rank as rank
from workbench.job.api import remove_process_set as remove_process_set
from workbench.job.api import run_threads as run_threads
from workbench.job.api import shutdown as shutdown
from workbench.job.api import size as size
from workbench.job.api import start_timeline as start_timeline
from workbench.job.api import stop_timeline as stop_timeline
from workbench.job.built import ccl_built as ccl_built
from workbench.job.built import cuda_built as cuda_built
from workbench.job.built import ddl_built as ddl_built
from workbench.job.built import gloo_built as gloo_built
from workbench.job.built import gloo_enabled as gloo_enabled
from workbench.job.built import mpi_built as mpi_built
from workbench.job.built import mpi_enabled as mpi_enabled
from workbench.job.built import mpi_threads_supported as mpi_threads_supported
from workbench.job.built import nccl_built as nccl_built
from workbench.job.built import rocm_built as rocm_built

HorovodInternalError = _errors.CollectiveError
