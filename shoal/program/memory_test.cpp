// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/memory.h"

#include <doctest/doctest.h>

#include <string>

#include "shoal/ir/text.h"
#include "shoal/program/aliases.h"

using namespace shoal;
using namespace shoal::program;

static Program lowered(const std::string& graph) { return lower(ir::from_text("graph local\n" + graph)); }

TEST_CASE("memory is what is alive at once, views counted once") {
  const Memory memory = memory_of(lowered(R"(%0 = input "x" : f32[100]
%1 : f32[100] = aten::cumsum(self=%0) @forward
%2 : f32[10, 10] = aten::view(self=%1, size=[10, 10]) @forward
%3 : f32[10, 10] = aten::cumsum(self=%2) @forward
%4 : f32[10, 10] = aten::cumsum(self=%3) @forward "m"
return output "y" %4
)"),
                                  1);
  CHECK(memory.sources[MemoryKind::Inputs] == 400);
  CHECK(memory.peak[MemoryKind::Activations] == 2 * 400);
  CHECK(memory.end[MemoryKind::Activations] == 400);
  const std::vector<MemoryUse> wanted = {{800, 800}, {800, 800}, {1200, 800}, {1200, 800}};
  CHECK(memory.uses[0] == wanted);
}

TEST_CASE("what lies in a file is no memory, and what is written over it neither") {
  Program program = lowered(R"(%0 = parameter "w" : f32[100]
%1 : f32[100] = aten::cumsum(self=%0) @forward
%2 : f32[100] = shoal::to_file(self=%1) @forward
%3 : f32[100] = aten::relu(self=%2) @backward
return gradient "w" %3
)");
  program.sources[0].is_offloaded = true;
  const Memory memory = memory_of(program, 1);
  CHECK(memory.sources.total() == 0);
  CHECK(memory.peak.total() == 400);
  CHECK(memory.end.total() == 0);
  CHECK(from_text(to_text(program)) == program);
}

TEST_CASE("a program that makes nothing takes most before its first instruction") {
  const Program program = lowered("%0 = input \"x\" : f32[100]\nreturn output \"y\" %0\n");
  const Memory memory = memory_of(program, 1);
  CHECK(memory.peak.total() == 400);
  CHECK(place_of_peak(program, memory) == "what is there before it");
}

TEST_CASE("what is written over its input takes nothing") {
  const Memory memory = memory_of(lowered(R"(%0 = input "x" : f32[100]
%1 : f32[100] = aten::cumsum(self=%0) @forward
%2 : f32[100] = aten::relu(self=%1) @forward
return output "y" %2
)"),
                                  1);
  CHECK(memory.peak.total() == 800);
}

TEST_CASE(
    "a gradient that is a part of what was gathered keeps the whole of it only where the part is a slice") {
  const auto gradients = [](const std::string& dim) {
    return memory_of(lowered("%0 = input \"x\" : f32[8, 4]\n"
                             "%1 : f32[8, 4] = aten::cumsum(self=%0) @backward\n"
                             "%2 : f32[4, 4] = shoal::part(self=%1, dim=" +
                             dim + ", index=0, count=2) @backward\nreturn gradient \"w\" %2\n"),
                     1)
        .end[MemoryKind::Gradients];
  };
  CHECK(gradients("0, outer=1, unit=1") == 8 * 4 * 4);
  CHECK(gradients("0, outer=2, unit=1") == 4 * 4 * 4);
}

TEST_CASE("what a kernel takes inside counts while it runs, for each thread") {
  const Program program = lowered(R"(%0 = input "x" : f32[4, 16, 8]
%1 = input "m" : f32[4, 16, 1]
%2 = parameter "w" : f32[8]
%3 : f32[4, 16, 8], %4 : f32[8], %5 : f32[8] = aten::native_layer_norm_backward(grad_out=%0, input=%0, normalized_shape=[8], mean=%1, rstd=%1, weight=%2, bias=%2, output_mask=[true, true, true]) @backward "norm"
return gradient "w" %4
)");
  const Memory one = memory_of(program, 1), four = memory_of(program, 4);
  CHECK(one.peak[MemoryKind::Workspace] == 2 * 8 * 4);
  CHECK(four.peak[MemoryKind::Workspace] == 4 * 2 * 8 * 4);
  CHECK(one.end == four.end);
  CHECK(place_of_peak(program, one) == "aten::native_layer_norm_backward in module \"norm\"");
}

TEST_CASE("a reshape shares memory where there is such a view") {
  const auto shares = [](const std::string& base, const std::string& shape) {
    const Program program =
        lowered("%0 = input \"x\" : " + base + "\n%1 : f32" + shape +
                " = aten::reshape(self=%0, shape=" + shape + ") @forward\nreturn output \"y\" %1\n");
    return shares_memory(call_of(std::get<Compute>(program.segments.at(0).instructions.at(0))),
                         program.types);
  };
  CHECK(shares("f32[4, 6]", "[24]"));
  CHECK(shares("f32[4, 6]", "[2, 2, 3, 2]"));
  CHECK(shares("f32[4, 6]{12,1}", "[2, 2, 6]"));  // gaps between rows
  CHECK(shares("f32[4, 6]{1,4}", "[4, 2, 3]"));
  CHECK_FALSE(shares("f32[4, 6]{1,4}", "[24]"));
  CHECK_FALSE(shares("f32[4, 6]{12,1}", "[24]"));
  CHECK(shares("f32[4, 1, 6]{6,1,1}", "[24]"));
}
