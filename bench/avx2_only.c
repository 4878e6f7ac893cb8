// Hides AVX-512, AVX-VNNI and AMX from every engine of a process, which still finds AVX2 and FMA, at the
// processor's own speed, unlike an emulator. For Intel processors with CPUID faulting (cpuid_fault in
// /proc/cpuinfo):
//
//   cc -O2 -shared -fPIC bench/avx2_only.c -o avx2_only.so -ldl
//   export JAXDELEGATE_MAX_CPU_ISA=avx2 XLA_FLAGS=--xla_cpu_max_isa=AVX2 NPROC=1
//   export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD
//   LD_PRELOAD=$PWD/avx2_only.so taskset -c 0 python bench/compare.py --graph=model.tflite
//
// The kernel turns CPUID into a fault (arch_prctl(2), ARCH_CPUID), which the handler emulates. This
// package and XLA read /proc/cpuinfo, or CPUID before the handler is installed, and need the variables.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define BIT(n) (1u << (n))
#define SET_CPUID 0x1012  // ARCH_SET_CPUID

static void let_cpuid_fault(int does) { syscall(SYS_arch_prctl, SET_CPUID, !does); }

static void emulate(int signal_number, siginfo_t* info, void* context) {
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const uint8_t* instruction = (const uint8_t*)registers[REG_RIP];
  if (instruction[0] != 0x0f || instruction[1] != 0xa2) {  // another fault
    signal(signal_number, SIG_DFL);
    return;
  }
  const uint32_t leaf = registers[REG_RAX], part = registers[REG_RCX];
  uint32_t a = leaf, b, c = part, d;
  let_cpuid_fault(0);
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  let_cpuid_fault(1);
  if (leaf == 7 && part == 0) {
    b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
    c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
    d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));
  } else if (leaf == 7 && part == 1) {
    a &= ~(BIT(4) | BIT(5) | BIT(21) | BIT(23));
    d &= ~(BIT(4) | BIT(5) | BIT(10) | BIT(19));
  }
  registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

// Other handlers are refused: absl and Python would replace this one.
int sigaction(int number, const struct sigaction* wanted, struct sigaction* before) {
  typedef int (*Function)(int, const struct sigaction*, struct sigaction*);
  static Function real;
  if (!real) real = (Function)dlsym(RTLD_NEXT, "sigaction");
  if (number == SIGSEGV && wanted && wanted->sa_sigaction != emulate) {
    if (before) memset(before, 0, sizeof *before);
    return 0;
  }
  return real(number, wanted, before);
}

__attribute__((constructor)) static void begin(void) {
  struct sigaction own;
  memset(&own, 0, sizeof own);
  own.sa_sigaction = emulate;
  own.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaction(SIGSEGV, &own, NULL);
  let_cpuid_fault(1);
}
