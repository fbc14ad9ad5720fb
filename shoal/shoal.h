// SPDX-License-Identifier: Apache-2.0
// All of the public interface: what find_package(Shoal) gives.
#pragma once

#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/capture/deferred.h"
#include "shoal/capture/scopes.h"
#include "shoal/collectives/collectives.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/comm_c10d/gloo.h"
#include "shoal/compile/optimizer.h"
#include "shoal/ir/graph.h"
#include "shoal/ir/text.h"
#include "shoal/observe/chrome_trace.h"
#include "shoal/observe/tensorboard.h"
#include "shoal/observe/trace.h"
#include "shoal/train/batch.h"
#include "shoal/train/padding.h"
#include "shoal/train/trainer.h"
#include "shoal/train/without_trace.h"
#include "shoal/world/world.h"
