// SPDX-License-Identifier: Apache-2.0
// Philox in groups of 16 counters side by side, so that the compiler can use vectors of any width.
//
//   group g = counters 16g … 16g+15, four words each, laid out by word:
//
//     draws of 32 bits   word 0 of the 16 | word 1 of the 16 | word 2 of the 16 | word 3 of the 16
//     element            64g + 0 … 15     | 64g + 16 … 31    | 64g + 32 … 47    | 64g + 48 … 63
//     draws of 64 bits   words 0 and 1                       | words 2 and 3
//     element            32g + 0 … 15                        | 32g + 16 … 31
//
// A counter is (low, high bits of its number with the step's above them, ordinal, low bits of the step); the
// key is the seed. Box and Muller's pairs are the elements 16 apart in the same group, so they too depend on
// i alone.
#include "shoal/aten/random.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/philox.h"

namespace shoal::aten {

// A function compiled for several instruction sets, the best one taken when the program is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define SHOAL_VECTOR_CLONES \
  __attribute__((target_clones("default", "avx2", "arch=skylake-avx512"), optimize("O3")))
#else
#define SHOAL_VECTOR_CLONES
#endif

static constexpr std::uint32_t kMultiplier[2] = {0xD2511F53, 0xCD9E8D57};
static constexpr std::uint32_t kWeyl[2] = {0x9E3779B9, 0xBB67AE85};
static constexpr int kRounds = 10;
static constexpr std::int64_t kLanes = 16;
static constexpr std::int64_t kWords = kWordsOfGroup;
static_assert(kWords == 4 * kLanes);

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  return shoal::philox(counter, key);
}

namespace {
struct Counters {
  std::uint32_t key[2];
  std::uint32_t step_high;
  std::uint32_t ordinal;
  std::uint32_t step_low;
};
}  // namespace

// The 64 words of each of `count` groups from `first` on.
SHOAL_VECTOR_CLONES static void fill_groups(std::uint32_t* words, std::uint64_t first, std::int64_t count,
                                            const Counters& counters) {
  for (std::int64_t group = 0; group < count; ++group, words += kWords) {
    std::uint32_t a[kLanes], b[kLanes], c[kLanes], d[kLanes];
    const std::uint64_t number =
        (first + static_cast<std::uint64_t>(group)) * kLanes;  // low four bits are zero
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      a[lane] = static_cast<std::uint32_t>(number) | static_cast<std::uint32_t>(lane);
      b[lane] = static_cast<std::uint32_t>(number >> 32) | counters.step_high << 16;
      c[lane] = counters.ordinal;
      d[lane] = counters.step_low;
    }
    std::uint32_t key0 = counters.key[0];
    std::uint32_t key1 = counters.key[1];
    for (int round = 0; round < kRounds; ++round) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const std::uint64_t product0 = std::uint64_t{kMultiplier[0]} * a[lane];
        const std::uint64_t product1 = std::uint64_t{kMultiplier[1]} * c[lane];
        a[lane] = static_cast<std::uint32_t>(product1 >> 32) ^ b[lane] ^ key0;
        b[lane] = static_cast<std::uint32_t>(product1);
        c[lane] = static_cast<std::uint32_t>(product0 >> 32) ^ d[lane] ^ key1;
        d[lane] = static_cast<std::uint32_t>(product0);
      }
      key0 += kWeyl[0];
      key1 += kWeyl[1];
    }
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      words[lane] = a[lane];
      words[lane + kLanes] = b[lane];
      words[lane + 2 * kLanes] = c[lane];
      words[lane + 3 * kLanes] = d[lane];
    }
  }
}

static Counters counters_of(const RandomStream& stream) {
  SHOAL_CHECK(stream.step >> 48 == 0, InvalidInput, "random: step ", stream.step, " is not below 2^48");
  SHOAL_CHECK(stream.ordinal >> 32 == 0, InvalidInput, "random: ordinal ", stream.ordinal,
              " is not below 2^32");
  SHOAL_CHECK(stream.start >= 0, InvalidInput, "random: start ", stream.start, " is negative");
  return {{static_cast<std::uint32_t>(stream.seed), static_cast<std::uint32_t>(stream.seed >> 32)},
          static_cast<std::uint32_t>(stream.step >> 32),
          static_cast<std::uint32_t>(stream.ordinal),
          static_cast<std::uint32_t>(stream.step)};
}

void random_words(std::span<std::uint32_t> words, std::int64_t first, const RandomStream& stream) {
  fill_groups(words.data(), static_cast<std::uint64_t>(first), std::ssize(words) / kWords,
              counters_of(stream));
}

// Fills out[0, size) with elements start … start + size. `turn(words, values, position)` makes a whole
// group's values from its words; position is that of the group's first element in out, and may be negative.
template <std::int64_t kElements, class T, class Turn>
static void generate_run(T* out, std::int64_t size, std::int64_t start, const Counters& counters,
                         const Turn& turn) {
  const std::int64_t first_group = start / kElements;
  const std::int64_t last_group = (start + size + kElements - 1) / kElements;
  constexpr std::int64_t kGroups = 16;  // at a time: 4 KiB of words
  at::parallel_for(first_group, last_group, 16384 / kElements, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) std::uint32_t words[kGroups * kWords];
    alignas(64) T values[kElements];
    for (std::int64_t group = begin; group < end; group += kGroups) {
      const std::int64_t count = std::min(kGroups, end - group);
      fill_groups(words, static_cast<std::uint64_t>(group), count, counters);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t position = (group + i) * kElements - start;
        if (position >= 0 && position + kElements <= size) {
          turn(words + i * kWords, out + position, position);
          continue;
        }
        turn(words + i * kWords, values, position);
        const std::int64_t from = std::max<std::int64_t>(position, 0);
        const std::int64_t to = std::min(position + kElements, size);
        std::copy(values + (from - position), values + (to - position), out + from);
      }
    }
  });
}

// The same for an `out` that is made of several such runs, position counted over all of them.
template <std::int64_t kElements, class T, class Turn>
static void generate(T* out, std::int64_t size, const RandomStream& stream, const Turn& turn) {
  const Counters counters = counters_of(stream);
  if (stream.stretches.empty()) {
    generate_run<kElements>(out, size, stream.start, counters, turn);
    return;
  }
  std::vector<std::int64_t> before = {0};
  for (const Stretch& stretch : stream.stretches) before.push_back(before.back() + stretch.size);
  SHOAL_CHECK(before.back() == size, Internal, "random: stretches of ", before.back(),
              " elements for a tensor of ", size);
  const auto count = static_cast<std::int64_t>(stream.stretches.size());
  at::parallel_for(0, count, std::max<std::int64_t>(1, 16384 * count / std::max<std::int64_t>(size, 1)),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
                       const std::int64_t offset = before[i];
                       generate_run<kElements>(
                           out + offset, stream.stretches[i].size, stream.stretches[i].start, counters,
                           [&](const std::uint32_t* words, T* values, std::int64_t position) {
                             turn(words, values, position + offset);
                           });
                     }
                   });
}

std::vector<Stretch> stretches_of(at::IntArrayRef whole, at::IntArrayRef box) {
  std::vector<Stretch> stretches = {{0, 1}};  // of the dims so far, in units of an element of them
  std::size_t at = 0;
  for (const std::int64_t size : whole) {
    SHOAL_CHECK(at < box.size() && box[at] >= 0 && at + 2 * static_cast<std::size_t>(box[at]) < box.size(),
                InvalidInput, "random: a box of ", box.size(), " numbers ends before dim ", size, " of ",
                whole);
    const auto ranges = box.slice(at + 1, 2 * static_cast<std::size_t>(box[at]));
    at += 1 + ranges.size();
    std::vector<Stretch> finer;
    const auto add = [&](std::int64_t start, std::int64_t length) {
      if (length == 0) return;
      if (!finer.empty() && finer.back().start + finer.back().size == start)
        finer.back().size += length;
      else
        finer.push_back({start, length});
    };
    for (const Stretch& stretch : stretches) {
      const bool is_all = ranges.size() == 2 && ranges[0] == 0 && ranges[1] == size;
      if (is_all) {
        add(stretch.start * size, stretch.size * size);
        continue;
      }
      for (std::int64_t i = stretch.start; i < stretch.start + stretch.size; ++i)
        for (std::size_t range = 0; range < ranges.size(); range += 2) {
          SHOAL_CHECK(0 <= ranges[range] && ranges[range] <= ranges[range + 1] && ranges[range + 1] <= size,
                      InvalidInput, "random: a box has ", ranges[range], " to ", ranges[range + 1],
                      " of a dim of ", size);
          add(i * size + ranges[range], ranges[range + 1] - ranges[range]);
        }
    }
    stretches = std::move(finer);
  }
  SHOAL_CHECK(at == box.size(), InvalidInput, "random: a box of ", box.size(), " numbers goes on after the ",
              whole.size(), " dims of ", whole);
  return stretches;
}

// The 64-bit draw of element `element` of a group.
static std::uint64_t wide(const std::uint32_t* words, std::int64_t element) {
  const std::int64_t at = element < kLanes ? element : element + kLanes;
  return std::uint64_t{words[at]} << 32 | words[at + kLanes];
}

// Doubles are made in double from 64 bits, the others in float from 32.
template <class T>
using Precise = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <class T>
static constexpr std::int64_t kDraws = std::is_same_v<T, double> ? kWords / 2 : kWords;

// In [0, 1), as fine as T: a multiple of 2^-digits, so that no rounding reaches 1.
template <class T>
static Precise<T> unit(const std::uint32_t* words, std::int64_t element) {
  constexpr int kDigits = std::min(std::numeric_limits<T>::digits, std::numeric_limits<Precise<T>>::digits);
  if constexpr (std::is_same_v<T, double>)
    return static_cast<double>(wide(words, element) >> (64 - kDigits)) * 0x1p-53;
  else
    return static_cast<float>(words[element] >> (32 - kDigits)) /
           static_cast<float>(std::uint32_t{1} << kDigits);
}

// In (0, 1): safe to take the logarithm of.
template <class Real>
static Real inner_unit(const std::uint32_t* words, std::int64_t element) {
  if constexpr (std::is_same_v<Real, double>)
    return (static_cast<double>(wide(words, element) >> 12) + 0.5) * 0x1p-52;
  else
    return (static_cast<float>(words[element] >> 9) + 0.5F) * 0x1p-23F;
}

template <class T>
static T from_integer(std::int64_t value) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(value);
  else
    return static_cast<T>(static_cast<Precise<T>>(value));
}

// The same numbers on every device: made by the processor, and carried over where that is another one. From
// pinned memory the copy is enqueued, and nobody waits for the device.
static at::Tensor made_on_cpu(at::IntArrayRef shape, const at::TensorOptions& options) {
  return at::empty(shape, options.device(at::kCPU)
                              .layout(at::kStrided)
                              .pinned_memory(options.device().is_cuda())
                              .requires_grad(false));
}

static at::Tensor delivered(at::Tensor made, const at::TensorOptions& options) {
  return options.device().is_cpu() ? made : made.to(options.device(), /*non_blocking=*/true);
}

template <class Body>
static at::Tensor of_real_type(const char* name, at::IntArrayRef shape, const at::TensorOptions& options,
                               const Body& body) {
  at::Tensor out = made_on_cpu(shape, options);
  SHOAL_CHECK(out.is_floating_point(), InvalidInput, "random: ", name,
              " makes floating-point tensors, asked for ", out.scalar_type());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "random",
                                  [&] { body(out.mutable_data_ptr<scalar_t>(), out.numel()); });
  return delivered(std::move(out), options);
}

at::Tensor bernoulli(double p, at::IntArrayRef shape, at::TensorOptions options, const RandomStream& stream) {
  SHOAL_CHECK(p >= 0 && p <= 1, InvalidInput, "random: the probability of bernoulli is ", p,
              ", not within 0 … 1");
  at::Tensor out = made_on_cpu(shape, options);
  const auto threshold = static_cast<std::uint64_t>(std::llround(std::ldexp(p, 32)));
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, out.scalar_type(), "bernoulli", [&] {
    generate<kWords>(out.mutable_data_ptr<scalar_t>(), out.numel(), stream,
                     [&](const std::uint32_t* words, scalar_t* values, std::int64_t) {
                       for (std::int64_t i = 0; i < kWords; ++i)
                         values[i] = static_cast<scalar_t>(words[i] < threshold);
                     });
  });
  return delivered(std::move(out), options);
}

at::Tensor bernoulli(const at::Tensor& p, at::TensorOptions options, const RandomStream& stream) {
  const at::Tensor chances = p.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* chance = chances.const_data_ptr<double>();
  const std::int64_t size = chances.numel();
  for (std::int64_t i = 0; i < size; ++i)
    SHOAL_CHECK(chance[i] >= 0 && chance[i] <= 1, InvalidInput, "random: a probability of bernoulli is ",
                chance[i], ", not within 0 … 1");
  at::Tensor out = made_on_cpu(p.sizes(), options);
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, out.scalar_type(), "bernoulli", [&] {
    generate<kWords>(out.mutable_data_ptr<scalar_t>(), size, stream,
                     [&](const std::uint32_t* words, scalar_t* values, std::int64_t position) {
                       for (std::int64_t i = 0; i < kWords; ++i) {
                         const std::int64_t at = std::clamp<std::int64_t>(position + i, 0, size - 1);
                         values[i] =
                             static_cast<scalar_t>(static_cast<double>(words[i]) * 0x1p-32 < chance[at]);
                       }
                     });
  });
  return delivered(std::move(out), options);
}

at::Tensor uniform(double from, double to, at::IntArrayRef shape, at::TensorOptions options,
                   const RandomStream& stream) {
  SHOAL_CHECK(from <= to && std::isfinite(to - from), InvalidInput, "random: uniform from ", from, " to ", to,
              " is no interval");
  return of_real_type("uniform", shape, options, [&]<class T>(T* out, std::int64_t size) {
    using Real = Precise<T>;
    const auto low = static_cast<Real>(from);
    const auto width = static_cast<Real>(to - from);
    generate<kDraws<T>>(out, size, stream, [&](const std::uint32_t* words, T* values, std::int64_t) {
      for (std::int64_t i = 0; i < kDraws<T>; ++i) {
        const T value = static_cast<T>(low + width * unit<T>(words, i));
        values[i] =
            static_cast<double>(value) < to ? value : static_cast<T>(low);  // the sum may round up to `to`
      }
    });
  });
}

at::Tensor normal(double mean, double deviation, at::IntArrayRef shape, at::TensorOptions options,
                  const RandomStream& stream) {
  SHOAL_CHECK(deviation >= 0, InvalidInput, "random: the deviation of normal is ", deviation,
              ", which is negative");
  return of_real_type("normal", shape, options, [&]<class T>(T* out, std::int64_t size) {
    using Real = Precise<T>;
    generate<kDraws<T>>(out, size, stream, [&](const std::uint32_t* words, T* values, std::int64_t) {
      for (std::int64_t pair = 0; pair < kDraws<T>; pair += 2 * kLanes)
        for (std::int64_t i = pair; i < pair + kLanes; ++i) {
          const Real radius = std::sqrt(Real{-2} * std::log(inner_unit<Real>(words, i)));
          const Real angle = static_cast<Real>(2 * 3.14159265358979323846) * unit<Real>(words, i + kLanes);
          values[i] = static_cast<T>(static_cast<Real>(mean) +
                                     static_cast<Real>(deviation) * radius * std::cos(angle));
          values[i + kLanes] = static_cast<T>(static_cast<Real>(mean) +
                                              static_cast<Real>(deviation) * radius * std::sin(angle));
        }
    });
  });
}

at::Tensor randint(std::int64_t low, std::int64_t high, at::IntArrayRef shape, at::TensorOptions options,
                   const RandomStream& stream) {
  SHOAL_CHECK(low < high, InvalidInput, "random: randint from ", low, " to ", high, " is an empty interval");
  at::Tensor out = made_on_cpu(shape, options);
  const std::uint64_t width = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, out.scalar_type(), "randint", [&] {
    generate<kWords / 2>(out.mutable_data_ptr<scalar_t>(), out.numel(), stream,
                         [&](const std::uint32_t* words, scalar_t* values, std::int64_t) {
                           for (std::int64_t i = 0; i < kWords / 2; ++i) {
                             const auto scaled = static_cast<unsigned __int128>(wide(words, i)) * width >> 64;
                             const auto value = static_cast<std::int64_t>(static_cast<std::uint64_t>(low) +
                                                                          static_cast<std::uint64_t>(scaled));
                             values[i] = from_integer<scalar_t>(value);
                           }
                         });
  });
  return delivered(std::move(out), options);
}

at::Tensor exponential(double lambda, at::IntArrayRef shape, at::TensorOptions options,
                       const RandomStream& stream) {
  SHOAL_CHECK(lambda > 0, InvalidInput, "random: the rate of exponential is ", lambda, ", not above 0");
  return of_real_type("exponential", shape, options, [&]<class T>(T* out, std::int64_t size) {
    using Real = Precise<T>;
    generate<kDraws<T>>(out, size, stream, [&](const std::uint32_t* words, T* values, std::int64_t) {
      for (std::int64_t i = 0; i < kDraws<T>; ++i)
        values[i] = static_cast<T>(-std::log(inner_unit<Real>(words, i)) / static_cast<Real>(lambda));
    });
  });
}

}  // namespace shoal::aten
