"""Results of arithmetic and conversions by exact fractions: python rounded.py makes rounded.cu, whose kernels compare with them."""

import random
import struct
from fractions import Fraction as Q
R=random.Random(7)
def enc(x, eb, mb, mode='rn', ftz=False, sat=False, fin=None):
    """x: Fraction or 'nan','inf','-inf','-0'; returns bits. fin: e4m3 style (no inf), max code."""
    bias=(1<<(eb-1))-1; sign=0
    top=(1<<eb)-1
    def out(s,e,m): return s<<(eb+mb)|e<<mb|m
    if x=='nan': return None
    if x=='-0': return out(1,0,0)
    if x in('inf','-inf'):
        return out(int(x=='-inf'),top,0)
    if x<0: sign=1; x=-x
    if x==0: return out(sign,0,0)
    e=0
    # find exponent
    n,d=x.numerator,x.denominator
    e=n.bit_length()-d.bit_length()
    if Q(2)**e>x: e-=1
    if Q(2)**(e+1)<=x: e+=1
    q=max(e,1-bias)-mb
    u=x/Q(2)**q
    f=u.numerator//u.denominator; r=u-f
    up={'rn':r>Q(1,2) or r==Q(1,2) and f&1,'rz':False,'rp':r>0 and not sign,'rm':r>0 and sign==1,'rna':r>=Q(1,2)}[mode]
    f+=int(bool(up))
    if f>>(mb+1): f>>=1; q+=1
    ee=q+mb+bias if f>>mb else 0
    m=f&((1<<mb)-1)
    if fin is not None:
        code=ee<<mb|m
        if code>fin: code=fin
        return sign<<(eb+mb)|code
    if ee>=top:
        if mode=='rz' or mode=='rp' and sign or mode=='rm' and not sign: return out(sign,top-1,(1<<mb)-1)
        return out(sign,top,0)
    if ftz and ee==0: return out(sign,0,0)
    return out(sign,ee,m)
def dec(bits, eb, mb):
    bias=(1<<(eb-1))-1; s=-1 if bits>>(eb+mb)&1 else 1; e=bits>>mb&((1<<eb)-1); m=bits&((1<<mb)-1)
    if e==(1<<eb)-1: return 'nan' if m else ('inf' if s>0 else '-inf')
    if e==0: return ('-0' if s<0 else Q(0)) if m==0 else s*Q(m,1)*Q(2)**(1-bias-mb)
    return s*Q(m|1<<mb)*Q(2)**(e-bias-mb)
num=lambda v: Q(0) if v=='-0' else v
f32=lambda b: dec(b,8,23); f64=lambda b: dec(b,11,52); f16=lambda b: dec(b,5,10); bf=lambda b: dec(b,8,7)
def pick(eb,mb,near=None):
    w=eb+mb+1
    k=R.randrange(6)
    if k==0: return R.getrandbits(w)
    if k==1: return R.getrandbits(1)<<(w-1)|R.getrandbits(mb)            # subnormal
    if k==2: return R.getrandbits(1)<<(w-1)|((1<<eb)-2)<<mb|R.getrandbits(mb) # large
    b=(1<<(eb-1))-1
    e=b+R.randrange(-20 if eb>5 else -12, 20 if eb>5 else 12)
    m=R.getrandbits(mb)
    if k==5: m&=~((1<<(mb//2))-1)
    return R.getrandbits(1)<<(w-1)|e<<mb|m
def finite(eb,mb):
    while True:
        b=pick(eb,mb)
        if dec(b,eb,mb) not in('nan','inf','-inf'): return b
kern=[]
def table(ty,name,vals):
    w={'unsigned':'u','unsigned long long':'ull','unsigned short':'u','unsigned char':'u'}[ty]
    return "__device__ const %s %s[] = {%s};\n"%(ty,name,", ".join(hex(v)+w for v in vals))
def emit(name, n, cols, body):
    """cols: list of (type,name,values)"""
    s="".join(table(ty,name+'_'+c,v) for ty,c,v in cols)
    s+="K ok_%s ARGS { for (int k = threadIdx.x; k < %d; k += 128) { "%(name,n)
    s+=" ".join("auto %s = %s_%s[k];"%(c,name,c) for _,c,_ in cols)
    s+=" "+body+" } }\n"
    kern.append(s)
U="unsigned"; UL="unsigned long long"; N=40
# fma in every rounding, and not contracted products
a=[finite(8,23) for _ in range(N)]; b=[finite(8,23) for _ in range(N)]; c=[]
for x,y in zip(a,b):
    k=R.randrange(3)
    if k==0: c.append(finite(8,23))
    else:
        p=-num(f32(x))*num(f32(y)); z=enc(p if p!=0 else Q(0),8,23,'rz')
        c.append(z)
modes=['rn','rz','rp','rm']
def fma(x,y,z,m):
    r=num(f32(x))*num(f32(y))+num(f32(z))
    return r
rows={m:[] for m in modes}
keep=[]
for x,y,z in zip(a,b,c):
    r=fma(x,y,z,'rn')
    if r==0: continue
    keep.append((x,y,z)); 
    for m in modes: rows[m].append(enc(r,8,23,m))
n=len(keep)
emit('fma_roundings',n,[(U,'a',[k[0] for k in keep]),(U,'b',[k[1] for k in keep]),(U,'c',[k[2] for k in keep])]+[(U,m,rows[m]) for m in modes],
 " ".join("{ float r; asm volatile(\"fma.%s.f32 %%0, %%1, %%2, %%3;\" : \"=f\"(r) : \"f\"(__uint_as_float(a)), \"f\"(__uint_as_float(b)), \"f\"(__uint_as_float(c))); SAME(__float_as_uint(r), %s); }"%(m,m) for m in modes))
sep=[]
for x,y,z in keep:
    p=enc(num(f32(x))*num(f32(y)),8,23)
    v=f32(p)
    if v in('inf','-inf'): sep.append((x,y,z,None)); continue
    s=num(v)+num(f32(z))
    sep.append((x,y,z,None if s==0 else enc(s,8,23)))
sep=[s for s in sep if s[3] is not None]
emit('mul_add_apart',len(sep),[(U,c,[s[i] for s in sep]) for i,c in enumerate('abcr')],"SAME(__float_as_uint(__fadd_rn(__fmul_rn(__uint_as_float(a), __uint_as_float(b)), __uint_as_float(c))), r);")
# ftz
def fl(b): return b&0x80000000 if (b>>23&255)==0 else b
z=[]
for _ in range(N):
    x,y=finite(8,23),finite(8,23)
    if R.random()<.6: x=R.getrandbits(1)<<31|R.randrange(0,4)<<23|R.getrandbits(23); y=R.getrandbits(1)<<31|R.randrange(0,4)<<23|R.getrandbits(23)
    s=num(f32(fl(x)))+num(f32(fl(y)))
    if s==0: continue
    z.append((x,y,fl(enc(s,8,23))))
emit('add_flushed',len(z),[(U,c,[s[i] for s in z]) for i,c in enumerate('abr')],"float s; asm volatile(\"add.ftz.f32 %0, %1, %2;\" : \"=f\"(s) : \"f\"(__uint_as_float(a)), \"f\"(__uint_as_float(b))); SAME(__float_as_uint(s), r);")
# division, roots
d=[]
for _ in range(N):
    x,y=finite(8,23),finite(8,23)
    if num(f32(y))==0 or num(f32(x))==0: continue
    d.append((x,y)+tuple(enc(num(f32(x))/num(f32(y)),8,23,m) for m in modes))
emit('divisions',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate(['a','b']+modes)],"float x = __uint_as_float(a), y = __uint_as_float(b); SAME(__float_as_uint(__fdiv_rn(x, y)), rn); SAME(__float_as_uint(__fdiv_rz(x, y)), rz); SAME(__float_as_uint(__fdiv_ru(x, y)), rp); SAME(__float_as_uint(__fdiv_rd(x, y)), rm); SAME(__float_as_uint(x / y), rn);")
d=[]
for _ in range(40):
    x,y=finite(11,52),finite(11,52)
    if num(f64(y))==0 or num(f64(x))==0: continue
    d.append((x,y,enc(num(f64(x))/num(f64(y)),11,52),enc(num(f64(x))*num(f64(y)),11,52,'rz')))
emit('doubles_divided',len(d),[(UL,c,[s[i] for s in d]) for i,c in enumerate('abqp')],"double x = __longlong_as_double(a), y = __longlong_as_double(b); SAME((unsigned long long)__double_as_longlong(x / y), q); SAME((unsigned long long)__double_as_longlong(__dmul_rz(x, y)), p);")
def isqrt(q, prec):
    # floor sqrt of Fraction scaled
    import math
    k=2*prec
    return Q(math.isqrt((q.numerator<<(2*k))//q.denominator), 1<<k)
def sq(x,eb,mb,mode):
    r=isqrt(x,1200 if eb==11 else 400)
    if r*r!=x: r+=Q(1,1<<(2600 if eb==11 else 1000))  # a little above the floor, below the true root's next representable
    return enc(r,eb,mb,mode)
d=[]
for _ in range(48):
    x=finite(8,23)&0x7fffffff
    if f32(x)==0: continue
    d.append((x,)+tuple(sq(f32(x),8,23,m) for m in modes))
emit('roots',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate(['a']+modes)],"float x = __uint_as_float(a); SAME(__float_as_uint(__fsqrt_rn(x)), rn); SAME(__float_as_uint(__fsqrt_rz(x)), rz); SAME(__float_as_uint(__fsqrt_ru(x)), rp); SAME(__float_as_uint(__fsqrt_rd(x)), rm);")
d=[]
for _ in range(40):
    x=finite(11,52)&(1<<63)-1
    if f64(x)==0: continue
    d.append((x,sq(f64(x),11,52,'rn')))
emit('double_roots',len(d),[(UL,c,[s[i] for s in d]) for i,c in enumerate('ar')],"SAME((unsigned long long)__double_as_longlong(sqrt(__longlong_as_double(a))), r);")
# f64 in every rounding
d=[]
for _ in range(40):
    x,y=finite(11,52),finite(11,52)
    if R.random()<.5:
        y=(y&(1<<63))|((x>>52&0x7ff)-R.randrange(0,60)&0x7ff)<<52|R.getrandbits(52)
    if f64(y) in ('inf','-inf','nan'): continue
    z=enc(-num(f64(x))*num(f64(y)),11,52,'rz') if R.random()<.5 else finite(11,52)
    X,Y=num(f64(x)),num(f64(y))
    if f64(z) in ('inf','-inf','nan') or not X or not Y: continue
    f=X*Y+num(f64(z))
    if f==0 or X+Y==0: continue
    d.append((x,y,z)+tuple(enc(f,11,52,m) for m in modes)+tuple(enc(X+Y,11,52,m) for m in modes[1:]))
emit('double_roundings',len(d),[(UL,c,[s[i] for s in d]) for i,c in enumerate(['a','b','c']+['f'+m for m in modes]+['s'+m for m in modes[1:]])],
 "double x = __longlong_as_double(a), y = __longlong_as_double(b), z = __longlong_as_double(c);"+" ".join("SAME((unsigned long long)__double_as_longlong(__fma_%s(x, y, z)), f%s);"%(n,m) for n,m in zip(['rn','rz','ru','rd'],modes))+" ".join("SAME((unsigned long long)__double_as_longlong(__dadd_%s(x, y)), s%s);"%(n,m) for n,m in zip(['rz','ru','rd'],modes[1:])))
d=[]
for _ in range(40):
    x,y=finite(8,23),finite(8,23)
    if R.random()<.5: y=(y&1<<31)|((x>>23&255)-R.randrange(0,60)&255)<<23|R.getrandbits(23)
    if f32(y) in ('inf','-inf','nan'): continue
    X,Y=num(f32(x)),num(f32(y))
    if not X or not Y or X+Y==0: continue
    d.append((x,y)+tuple(enc(X+Y,8,23,m) for m in modes)+tuple(enc(X*Y,8,23,m) for m in modes))
emit('float_roundings',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate(['a','b']+['s'+m for m in modes]+['p'+m for m in modes])],
 "float x = __uint_as_float(a), y = __uint_as_float(b);"+" ".join("SAME(__float_as_uint(__fadd_%s(x, y)), s%s); SAME(__float_as_uint(__fmul_%s(x, y)), p%s);"%(n,m,n,m) for n,m in zip(['rn','rz','ru','rd'],modes)))
# narrowing
def narrow(x,src,eb,mb,mode):
    v=src(x)
    if v=='nan': return None
    return enc(v,eb,mb,mode)
d=[]
for _ in range(N):
    x=pick(8,23)
    if R.random()<.5: x=R.getrandbits(1)<<31|R.randrange(100,145)<<23|R.getrandbits(23)
    if R.random()<.3: x&=~0xfff; x|=0x1000
    if f32(x)=='nan': continue
    d.append((x,narrow(x,f32,5,10,'rn'),narrow(x,f32,5,10,'rz') ,narrow(x,f32,8,7,'rn'),narrow(x,f32,8,7,'rz'),(narrow(x,f32,8,10,'rna')<<13)&0xffffffff))
emit('narrowed',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate(['a','h','hz','q','qz','tf'])],
 "float x = __uint_as_float(a); SAME((unsigned)__half_as_ushort(__float2half_rn(x)), h); SAME((unsigned)__half_as_ushort(__float2half_rz(x)), hz); SAME((unsigned)__bfloat16_as_ushort(__float2bfloat16_rn(x)), q); SAME((unsigned)__bfloat16_as_ushort(__float2bfloat16_rz(x)), qz); unsigned tf_; asm volatile(\"cvt.rna.tf32.f32 %0, %1;\" : \"=r\"(tf_) : \"f\"(x)); SAME(tf_ & ~0x1fffu, tf);")
d=[]
for _ in range(N):
    x=pick(11,52)
    if R.random()<.7: x=R.getrandbits(1)<<63|R.randrange(1023-155,1023+130)<<52|R.getrandbits(52)
    if f64(x)=='nan': continue
    d.append((x,)+tuple(enc(f64(x),8,23,m) for m in modes)+(enc(f64(x),5,10),))
emit('from_doubles',len(d),[(UL,c,[s[i] for s in d]) for i,c in enumerate(['a']+modes+['h'])],
 "double x = __longlong_as_double(a); SAME((unsigned long long)__float_as_uint(__double2float_rn(x)), rn); SAME((unsigned long long)__float_as_uint(__double2float_rz(x)), rz); SAME((unsigned long long)__float_as_uint(__double2float_ru(x)), rp); SAME((unsigned long long)__float_as_uint(__double2float_rd(x)), rm); SAME((unsigned long long)__half_as_ushort(__double2half(x)), h);")
# fp8
d=[]
for _ in range(N):
    x=R.getrandbits(1)<<31|R.randrange(127-20,127+18)<<23|R.getrandbits(23)
    if R.random()<.4: x&=~0x7ffff
    y=R.getrandbits(1)<<31|R.randrange(127-20,127+18)<<23|R.getrandbits(23)
    e4=[enc(f32(v),4,3,fin=0x7e) for v in (x,y)]; e5=[enc(f32(v),5,2,fin=0x7b) for v in (x,y)]
    d.append((x,y,e4[0]|e4[1]<<8,e5[0]|e5[1]<<8))
emit('fp8_saturated',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate('abef')],
 "float2 v = make_float2(__uint_as_float(a), __uint_as_float(b)); SAME((unsigned)__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3), e); SAME((unsigned)__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E5M2), f);")
def e4m3(b):
    if b&0x7f==0x7f: return 'nan'
    s=-1 if b>>7 else 1; e=b>>3&15; m=b&7
    return s*(Q(m,8)*Q(2)**-6 if e==0 else (1+Q(m,8))*Q(2)**(e-7))
d=[]
for x in range(256):
    if e4m3(x)=='nan' or dec(x,5,2)=='nan': continue
    v=e4m3(x); h=enc(v,5,10) if not(v==0 and x>>7) else 0x8000
    w=dec(x,5,2); g=enc(w,5,10)
    d.append((x,h,g))
emit('fp8_widened',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate('ahg')],
 "SAME((unsigned)__half_raw(__nv_cvt_fp8_to_halfraw(a, __NV_E4M3)).x, h); SAME((unsigned)__half_raw(__nv_cvt_fp8_to_halfraw(a, __NV_E5M2)).x, g);")
# to integers
def toint(v,lo,hi,mode,nan):
    import math
    if v=='nan': return nan
    if v=='inf': return hi
    if v=='-inf': return lo
    v=num(v)
    f=v.numerator//v.denominator; r=v-f
    if mode=='rz': f=f+(1 if v<0 and r>0 else 0)
    if mode=='rp': f+=int(r>0)
    if mode=='rn': f+=int(r>Q(1,2) or r==Q(1,2) and f&1)
    return max(lo,min(hi,f))
d=[]
for _ in range(N):
    x=pick(8,23)
    if R.random()<.6: x=R.getrandbits(1)<<31|R.randrange(124,160)<<23|R.getrandbits(23)
    if R.random()<.3: x=R.getrandbits(1)<<31|struct.unpack('<I',struct.pack('<f',R.randrange(0,300)+.5))[0]
    v=f32(x); S=(-(1<<31),(1<<31)-1); Uu=(0,(1<<32)-1)
    d.append((x,)+tuple(toint(v,*S,m,0)&0xffffffff for m in modes)+(toint(v,*Uu,'rz',0),toint(v,*Uu,'rn',0),toint(v,-128,127,'rn',0)&0xff,toint(v,0,65535,'rm',0)))
emit('to_integers',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate(['a']+modes+['u','un','c','h'])],
 "float x = __uint_as_float(a); SAME((unsigned)__float2int_rn(x), rn); SAME((unsigned)__float2int_rz(x), rz); SAME((unsigned)__float2int_ru(x), rp); SAME((unsigned)__float2int_rd(x), rm); SAME(__float2uint_rz(x), u); SAME(__float2uint_rn(x), un); unsigned c_, h_; asm volatile(\"{ .reg .s8 s; cvt.rni.sat.s8.f32 s, %1; cvt.u32.u8 %0, s; }\" : \"=r\"(c_) : \"f\"(x)); SAME(c_ & 255, c); unsigned short us; asm volatile(\"cvt.rmi.u16.f32 %0, %1;\" : \"=h\"(us) : \"f\"(x)); h_ = us; SAME(h_, h);")
d=[]
for _ in range(N):
    x=pick(11,52)
    if R.random()<.6: x=R.getrandbits(1)<<63|R.randrange(1020,1023+68)<<52|R.getrandbits(52)
    v=f64(x)
    M=(1<<64)-1
    d.append((x,toint(v,-(1<<63),(1<<63)-1,'rz',-(1<<63))&M,toint(v,0,M,'rn',1<<63),toint(v,-(1<<31),(1<<31)-1,'rp',-(1<<31))&0xffffffff,toint(v,0,(1<<32)-1,'rm',1<<31)))
emit('doubles_to_integers',len(d),[(UL,c,[s[i] for s in d]) for i,c in enumerate('asuiw')],
 "double x = __longlong_as_double(a); SAME((unsigned long long)__double2ll_rz(x), s); SAME(__double2ull_rn(x), u); SAME((unsigned long long)(unsigned)__double2int_ru(x), i); SAME((unsigned long long)__double2uint_rd(x), w);")
d=[]
for _ in range(N):
    x=R.getrandbits(64) if R.random()<.7 else R.getrandbits(R.randrange(1,64))
    s=x-(1<<64) if x>>63 else x
    d.append((x,enc(Q(x),8,23),enc(Q(s),8,23,'rm'),enc(Q(x),11,52,'rz'),enc(Q(s),11,52,'rp')))
emit('from_integers',len(d),[(UL,c,[s[i] for s in d]) for i,c in enumerate('auszp')],
 "SAME((unsigned long long)__float_as_uint(__ull2float_rn(a)), u); SAME((unsigned long long)__float_as_uint(__ll2float_rd((long long)a)), s); SAME((unsigned long long)__double_as_longlong(__ull2double_rz(a)), z); SAME((unsigned long long)__double_as_longlong(__ll2double_ru((long long)a)), p);")
# half arithmetic
d=[]
for _ in range(N):
    x,y,zz=finite(5,10),finite(5,10),finite(5,10)
    X,Y,Z=(num(f16(v)) for v in(x,y,zz))
    r=X*Y+Z; s=X+Y
    if r==0 or s==0 or X*Y==0: continue
    fm=enc(r,5,10); 
    sat=0 if r<0 else min(enc(r,5,10),0x3c00)
    d.append((x,y,zz,fm,sat,enc(s,5,10),enc(X*Y,5,10),0 if r<0 else fm))
emit('halves',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate('abcfsdmr')],
 "__half x = __ushort_as_half(a), y = __ushort_as_half(b), z = __ushort_as_half(c); SAME((unsigned)__half_as_ushort(__hfma(x, y, z)), f); SAME((unsigned)__half_as_ushort(__hfma_sat(x, y, z)), s); SAME((unsigned)__half_as_ushort(__hadd(x, y)), d); SAME((unsigned)__half_as_ushort(__hmul(x, y)), m); SAME((unsigned)__half_as_ushort(__hfma_relu(x, y, z)), r);")
d=[]
for _ in range(N):
    x,y,zz=finite(8,7),finite(8,7),finite(8,7)
    X,Y,Z=(num(bf(v)) for v in(x,y,zz))
    r=X*Y+Z; s=X-Y
    if r==0 or s==0: continue
    d.append((x,y,zz,enc(r,8,7),enc(s,8,7)))
emit('brains',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate('abcfd')],
 "__nv_bfloat16 x = __ushort_as_bfloat16(a), y = __ushort_as_bfloat16(b), z = __ushort_as_bfloat16(c); SAME((unsigned)__bfloat16_as_ushort(__hfma(x, y, z)), f); SAME((unsigned)__bfloat16_as_ushort(__hsub(x, y)), d);")
# integers
W=(1<<32)-1
def s32(x): return x-(1<<32) if x>>31 else x
def s8(x): return x-256 if x>>7 else x
d=[]
for _ in range(N):
    x,y,z=(R.getrandbits(32) for _ in range(3))
    p=R.choice([R.randrange(0,34),R.randrange(0,256)]); l=R.choice([R.randrange(0,34),R.randrange(0,256)])
    # bfe.u32/s32
    P,L=p&255,l&255
    def bit(k): return x>>k&1 if k<32 else 0
    msb=31
    ub=0; 
    for i in range(32): ub|=((x>>(P+i)&1) if i<L and P+i<=msb else 0)<<i
    sbit=0 if L==0 else x>>min(P+L-1,msb)&1
    sb=0
    for i in range(32): sb|=((x>>(P+i)&1) if i<L and P+i<=msb else sbit)<<i
    bi=y
    for i in range(32):
        if i<L and P+i<=msb: bi=bi&~(1<<(P+i))|(x>>i&1)<<(P+i)
    sh=R.randrange(0,70); c=min(sh,32); 
    v=(y<<32|x)
    dp=s32(z)+sum(s8(x>>8*i&255)*(y>>8*i&255) for i in range(4))
    dp2=z+sum((x>>16*i&65535)*(y>>8*(i+2)&255) for i in range(2))
    sad=z+abs(s32(x)-s32(y))
    d.append((x,y,z,p,l,ub,sb,bi,sh,(v<<c>>32)&W,(v>>(sh&31))&W,dp&W,dp2&W,sad&W,(s32(x)*s32(y)>>32)&W,(s32(x<<8&W)*s32(y<<8&W)>>32)&W))
emit('bits_of_words',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate(['a','b','c','p','l','ub','sb','bi','sh','fl','fr','dp','dp2','sad','hi','m24'])],
 "unsigned r; asm volatile(\"bfe.u32 %0, %1, %2, %3;\" : \"=r\"(r) : \"r\"(a), \"r\"(p), \"r\"(l)); SAME(r, ub); asm volatile(\"bfe.s32 %0, %1, %2, %3;\" : \"=r\"(r) : \"r\"(a), \"r\"(p), \"r\"(l)); SAME(r, sb); asm volatile(\"bfi.b32 %0, %1, %2, %3, %4;\" : \"=r\"(r) : \"r\"(a), \"r\"(b), \"r\"(p), \"r\"(l)); SAME(r, bi); SAME(__funnelshift_lc(a, b, sh), fl); SAME(__funnelshift_r(a, b, sh), fr); asm volatile(\"dp4a.s32.u32 %0, %1, %2, %3;\" : \"=r\"(r) : \"r\"(a), \"r\"(b), \"r\"(c)); SAME(r, dp); asm volatile(\"dp2a.hi.u32.u32 %0, %1, %2, %3;\" : \"=r\"(r) : \"r\"(a), \"r\"(b), \"r\"(c)); SAME(r, dp2); SAME(__sad((int)a, (int)b, c), sad); SAME((unsigned)__mulhi((int)a, (int)b), hi); asm volatile(\"mul24.hi.s32 %0, %1, %2;\" : \"=r\"(r) : \"r\"(a), \"r\"(b)); SAME(r, m24);")
# prmt
def prmt(a,b,sel,mode):
    by=[(a>>8*i)&255 for i in range(4)]+[(b>>8*i)&255 for i in range(4)]
    if mode=='':
        out=[]
        for i in range(4):
            s=sel>>4*i&15; v=by[s&7]
            out.append((255 if v>>7 else 0) if s&8 else v)
    else:
        s=sel&3
        t={'f4e':[[0,1,2,3],[1,2,3,4],[2,3,4,5],[3,4,5,6]],'b4e':[[0,7,6,5],[1,0,7,6],[2,1,0,7],[3,2,1,0]],'rc8':[[i]*4 for i in range(4)],'ecl':[[0,1,2,3],[1,1,2,3],[2,2,2,3],[3,3,3,3]],'ecr':[[0,0,0,0],[0,1,1,1],[0,1,2,2],[0,1,2,3]],'rc16':[[0,1,0,1],[2,3,2,3],[0,1,0,1],[2,3,2,3]]}[mode][s]
        out=[by[k] for k in t]
    return sum(v<<8*i for i,v in enumerate(out))
ms=['','f4e','b4e','rc8','ecl','ecr','rc16']
d=[]
for _ in range(40):
    a_,b_,s_=(R.getrandbits(32) for _ in range(3))
    d.append((a_,b_,s_)+tuple(prmt(a_,b_,s_,m) for m in ms))
emit('permutations',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate(['a','b','s']+['r'+m for m in ms])],
 "unsigned x; "+" ".join("asm volatile(\"prmt.b32%s %%0, %%1, %%2, %%3;\" : \"=r\"(x) : \"r\"(a), \"r\"(b), \"r\"(s)); SAME(x, r%s);"%('.'+m if m else '',m) for m in ms))
# 128-bit and carries
d=[]
for _ in range(40):
    x=R.getrandbits(128)>>R.choice([0,0,40,100]); y=R.getrandbits(128)>>R.choice([0,30,70,120])|1
    M=(1<<64)-1; p=x*y&(1<<128)-1; q=x//y; r=x%y; s=(x+y)&(1<<128)-1
    d.append((x&M,x>>64,y&M,y>>64,p&M,p>>64,q&M,q>>64,r&M,r>>64,s&M,s>>64))
emit('wide_integers',len(d),[(UL,c,[s[i] for s in d]) for i,c in enumerate(['al','ah','bl','bh','pl','ph','ql','qh','rl','rh','sl','sh'])],
 "unsigned __int128 a = (unsigned __int128)ah << 64 | al, b = (unsigned __int128)bh << 64 | bl, p = (unsigned __int128)ph << 64 | pl, q = (unsigned __int128)qh << 64 | ql, r = (unsigned __int128)rh << 64 | rl, s = (unsigned __int128)sh << 64 | sl; CHECK(a * b == p && a / b == q && a % b == r && a + b == s); SAME(__umul64hi(al, bl), (unsigned long long)((unsigned __int128)al * bl >> 64));")
d=[]
for _ in range(40):
    x=R.getrandbits(64)>>R.choice([0,1,33,50]); y=(R.getrandbits(64)>>R.choice([0,1,33,50,63]))|1
    sx=x-(1<<64) if x>>63 else x; sy=y-(1<<64) if y>>63 else y
    import math
    q=abs(sx)//abs(sy)*(1 if (sx<0)==(sy<0) else -1); r=sx-q*sy
    M=(1<<64)-1
    if sx==-(1<<63) and sy==-1: continue
    d.append((x,y,x//y,x%y,q&M,r&M))
emit('divided_integers',len(d),[(UL,c,[s[i] for s in d]) for i,c in enumerate('abqrst')],
 "SAME(a / b, q); SAME(a % b, r); SAME((unsigned long long)((long long)a / (long long)b), s); SAME((unsigned long long)((long long)a % (long long)b), t);")
# video/simd
def by(x): return [x>>8*i&255 for i in range(4)]
def hw(x): return [x&65535,x>>16]
def jb(v): return sum((k&255)<<8*i for i,k in enumerate(v))
def jh(v): return sum((k&65535)<<16*i for i,k in enumerate(v))
def s16(x): return x-65536 if x>>15 else x
cl=lambda v,lo,hi: max(lo,min(hi,v))
d=[]
for _ in range(40):
    x,y=R.getrandbits(32),R.getrandbits(32)
    if R.random()<.3: x^=y&0xff00ff00^x&0xff00ff00
    A,B=by(x),by(y); H,G=hw(x),hw(y)
    d.append((x,y,jb([p+q for p,q in zip(A,B)]),jb([cl(s8(p)+s8(q),-128,127) for p,q in zip(A,B)]),jb([abs(p-q) for p,q in zip(A,B)]),sum(abs(s8(p)-s8(q)) for p,q in zip(A,B)),jb([255 if p==q else 0 for p,q in zip(A,B)]),jb([(p+q+1)//2 for p,q in zip(A,B)]),jh([max(s16(p),s16(q)) for p,q in zip(H,G)]),jh([cl(p-q,0,65535) for p,q in zip(H,G)]),jh([cl(abs(s16(p)),0,32767) for p in H]),jh([1 if s16(p)<=s16(q) else 0 for p,q in zip(H,G)])))
names=['add','adds','diff','sad','eq','avg','mx','subu','ab','le']
calls=['__vadd4(a, b)','__vaddss4(a, b)','__vabsdiffu4(a, b)','__vsads4(a, b)','__vcmpeq4(a, b)','__vavgu4(a, b)','__vmaxs2(a, b)','__vsubus2(a, b)','__vabsss2(a)','__vsetles2(a, b)']
emit('simd_in_words',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate(['a','b']+names)]," ".join("SAME(%s, %s);"%(c,n) for c,n in zip(calls,names)))
# min/max, sign games
d=[]
spec=[0,0x80000000,0x7f800000,0xff800000,0x7fc00000,0x3f800000,0xbf800000,1,0x80000001]
for x in spec:
    for y in spec:
        vx,vy=f32(x),f32(y)
        key=lambda b,v: (Q(10)**50 if v=='inf' else -Q(10)**50 if v=='-inf' else num(v), 0 if b>>31 else 1)
        NAN=0x7fffffff
        if vx=='nan' and vy=='nan': mn=mx=NAN
        elif vx=='nan': mn=mx=y
        elif vy=='nan': mn=mx=x
        else:
            mn,mx=(x,y) if key(x,vx)<=key(y,vy) else (y,x)
        mnn=NAN if 'nan' in (vx,vy) else mn
        ax,ay=x&W>>1,y&W>>1
        if vx=='nan' and vy=='nan': xs=NAN
        elif vx=='nan': xs=ay|((x^y)&1<<31)
        elif vy=='nan': xs=ax|((x^y)&1<<31)
        else: xs=(ax if key(ax,f32(ax))>=key(ay,f32(ay)) else ay)|((x^y)&1<<31)
        d.append((x,y,mn,mx,mnn,xs,(y&1<<31)^0 |0))
d=[r for r in d]
emit('least_and_most',len(d),[(U,c,[s[i] for s in d]) for i,c in enumerate(['a','b','mn','mx','nan','xs'])],
 "float x = __uint_as_float(a), y = __uint_as_float(b), r; SAME(__float_as_uint(fminf(x, y)), mn); SAME(__float_as_uint(fmaxf(x, y)), mx); asm volatile(\"min.NaN.f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(x), \"f\"(y)); SAME(__float_as_uint(r), nan); if (x == x && y == y) { asm volatile(\"max.xorsign.abs.f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(x), \"f\"(y)); SAME(__float_as_uint(r), xs); }")
head='''// Like sync.cu: arithmetic and conversions whose results a program outside computed by exact fractions (rounded.py): roundings, subnormal and
// saturated results, packed and wide integers. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 rounded.cu
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#define K extern "C" __global__ void
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
#define SAME(x, y) CHECK((x) == (y))

'''
open('rounded.cu','w').write(head+"".join(kern))
