// SPDX-License-Identifier: Apache-2.0
// A communicator whose calls stand in a flight recorder, and whose waits have one limit.
#pragma once

#include <chrono>
#include <memory>

#include "shoal/comm/communicator.h"
#include "shoal/elastic/flight.h"

namespace shoal::elastic {

// The communicator, and its subgroups, are `comm::Located`: a call's module stands in the recorder, and an
// error of it ends in ", in group [0,2], in h.3.mlp".
// `flight` is borrowed, and outlives the communicator and its works. No wait is longer than `limit`.
std::unique_ptr<comm::Communicator> recorded(std::unique_ptr<comm::Communicator> communicator, Flight& flight,
                                             std::chrono::nanoseconds limit, std::string group = "");

}  // namespace shoal::elastic
