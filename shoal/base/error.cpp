// SPDX-License-Identifier: Apache-2.0
#include "shoal/base/error.h"

#include "shoal/base/names.h"

namespace shoal {

static constexpr Names<ErrorKind, 6> kErrorKinds = {{
    {ErrorKind::InvalidInput, "invalid input"},
    {ErrorKind::Infeasible, "infeasible"},
    {ErrorKind::PeerLost, "peer lost"},
    {ErrorKind::Timeout, "timeout"},
    {ErrorKind::Corrupt, "corrupt"},
    {ErrorKind::Internal, "internal"},
}};

std::string_view name_of(ErrorKind kind) { return name_in(kErrorKinds, kind); }

}  // namespace shoal
